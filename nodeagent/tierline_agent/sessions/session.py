"""The state machine of one client: HELLO first, then the subjects; ERROR and close on violation.

Closing has two steps. At once: the job ends and the lease goes on, and another client may have the
task's arenas. Then, when requests and copies that still use the client's memory have ended, its
arenas and staging memory are given up, and the task may have another plan. Extents that the process
may still have mapped wait, in the pool, for its death.

This way out is one, and it cannot fail: each thing that a client holds is given up whatever becomes
of the others (`ExitStack`), failures are logged, and what a request took after the first step, when
it was still at work, is given up by the second.

A session that ends because the agent does leaves everything as it is: its client goes on, with the
next agent (`leave`).

Invariant: after `closed` is done nothing of this session touches memory, descriptors or stores. The
server has no session whose connection is gone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from tierline_agent.context import Node
from tierline_agent.errors import ConnectionViolation, NotAdmitted, NothingToOffer
from tierline_agent.memory.arenas import Arena
from tierline_agent.processes.identity import Peer, Process
from tierline_agent.registry import Task, printable
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.cached_lease_jobs import CachedLeaseJobs
from tierline_agent.sessions.jobs.jobs import Jobs
from tierline_agent.sessions.loading import Loading
from tierline_agent.sessions.reattach import Reattach
from tierline_agent.sessions.replies import error_for, internal_error
from tierline_agent.sessions.status import ClientStatus
from tierline_agent.sessions.workspace import ClientWorkspace
from tierline_agent.transport.protocol import (
    MINOR,
    Ack,
    Attach,
    DescriptorKind,
    Digests,
    Error,
    ErrorCode,
    Fds,
    Fetch,
    Free,
    Hello,
    JobBegin,
    JobEnd,
    JobHeld,
    JobReturned,
    JobTaken,
    Message,
    Notice,
    Output,
    Profile,
    ProtocolError,
    Ready,
    Reserve,
    Rewind,
    Seal,
    Stats,
    Store,
    Welcome,
    WelcomeFlags,
    Workspace,
    WorkspaceReturn,
    Yield,
)

_log = logging.getLogger(__name__)
_DEVICE_KINDS = ("cpu", "cuda")
_OFFERING = (Hello, JobHeld, Digests, Attach, WorkspaceReturn, Fds, Notice, Error)
"""What a client that comes back says before anything else."""


class Session:
    """One connection, from HELLO to its end."""

    def __init__(
        self,
        node: Node,
        task: Task,
        peer: Peer,
        connection: socket.socket,
        on_closed: Callable[[Session], None],
    ) -> None:
        """Take over the socket, which must be non-blocking, and begin to read."""
        self.client = Client(node, task, peer, connection, self)
        self._workspace = ClientWorkspace(self.client)
        self._cached_lease_jobs = CachedLeaseJobs(self.client)
        self.jobs = Jobs(self.client, self._workspace, self._cached_lease_jobs)
        self.status = ClientStatus(self.client)
        self._loading = Loading(self.client)
        self._reattach = Reattach(self.client, self.jobs)
        self._workspace.on_running = self._resume_with_workspace
        self._on_closed = on_closed
        self._leaves = False
        self.closed = self.client.closed
        self._giving_up: asyncio.Task[None] | None = None
        self._handlers: dict[type[Message], Callable[[int, Any], None]] = {
            Hello: self._hello,
            Reserve: self._loading.reserve,
            Store: self._loading.store,
            Seal: self._loading.seal,
            Free: self._free,
            Fetch: self._loading.fetch,
            Profile: self._loading.profile,
            Workspace: self._ask_workspace,
            WorkspaceReturn: self._workspace.offer,
            JobBegin: self.jobs.begin,
            JobTaken: self.jobs.take,
            JobReturned: self.jobs.give_back,
            Yield: self.jobs.give_away,
            Rewind: self.jobs.rewind,
            JobEnd: self.jobs.end,
            Ack: self.jobs.acknowledge,
            Output: self.jobs.records.output,
            Ready: self.status.wait_for_start,
            Notice: self.status.notice,
            Stats: self.status.stats,
            JobHeld: self._reattach.held,
            Digests: self._reattach.digests,
            Attach: self._reattach.attach,
            Fds: self._descriptors,
            Error: self._client_error,
        }
        # a descriptor that leaked into another process keeps the connection open: see the process
        self._death: int | None = None
        try:
            self._death = node.watch.on_death(peer.process, self._process_died)
        except OSError as failure:
            self.client.refuse(0, failure)
            self.client.connection.close()
        self.client.connection.resume()

    # -- what the connection reports

    def on_message(self, sequence: int, message: Message) -> None:
        """Work with a message."""
        try:
            if not isinstance(message, JobBegin):
                self.jobs.settle()
            handler = self._handler_of(message)
            if not isinstance(message, _OFFERING):
                self.client.node.recovery.has_offered_all(self.client.token)
            handler(sequence, message)
        except (ConnectionViolation, ProtocolError) as error:
            self.on_violation(sequence, error)
        except Exception as failure:  # a fault here must cost this connection only
            self.client.refuse(sequence, failure)
            self.client.connection.close()

    def on_quiet(self) -> None:
        """Do what nobody waited for."""
        try:
            self.jobs.settle()
        except Exception as failure:  # as above
            self.client.reply(0, internal_error(failure))
            self.client.connection.close()

    def on_violation(self, sequence: int, error: ProtocolError | ConnectionViolation) -> None:
        """Say what was wrong, and close."""
        _log.warning("closing the connection of %s: %s", self.client, error)
        comes_back = self.jobs.returned and isinstance(error, NothingToOffer)
        # one that offers too late what it once was lent is told so, for good
        self.client.reply(sequence, error_for(NotAdmitted(str(error)) if comes_back else error))
        self.client.connection.close()

    def device_lost(self, why: str) -> None:
        """Say that all that the client had on its device is gone, and close."""
        name = self.client.unit.name
        sentence = f"{name} was lost, and with it all weights on it; load them again ({why})"
        self.client.reply(0, error_for(NotAdmitted(sentence)))
        self.client.connection.close()

    def outlived(self) -> None:
        """Its process was killed, and is not dead: end without it."""
        client = self.client
        client.task.add_notice(
            "outliving",
            0,
            f"process {client.process.pid} was killed and has not ended: it has lost the device, "
            "and what it has mapped counts in the plan of its task until it ends",
        )
        client.connection.close()

    def leave(self) -> None:
        """End with the agent: the client keeps what it has, and so does what is on disk of it."""
        self._leaves = True
        self.client.connection.close()

    def on_closed(self) -> None:
        """Let the lease go on; give up the rest when it is quiet."""
        self._on_closed(self)
        if self._leaves:
            self.closed.set_result(None)
            return
        client, node = self.client, self.client.node
        node.reclaims.session_leaves(client.process)
        try:
            with ExitStack() as leaving:  # from the last one to the first
                leaving.callback(self._cached_lease_jobs.withdraw)
                leaving.callback(self.jobs.close)
                for arena in client.arenas.values():
                    leaving.callback(client.unit.executor.forget, arena.words)
                leaving.callback(self._reattach.close)
                leaving.callback(self.jobs.settle)
        except Exception:
            _log.exception("%s has left, and something failed at it", client)
        self._giving_up = node.loop.create_task(self._give_up())

    # -- inside

    def _handler_of(self, message: Message) -> Callable[[int, Any], None]:
        if self.client.token == 0 and not isinstance(message, Hello):
            raise ConnectionViolation("the first message is not HELLO", out_of_order=True)
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ConnectionViolation(f"a client does not send {type(message).__name__}")
        return handler

    def _free(self, sequence: int, message: Free) -> None:
        self._cached_lease_jobs.changes()
        self._loading.free(sequence, message)

    def _ask_workspace(self, sequence: int, message: Workspace) -> None:
        self._cached_lease_jobs.changes()
        self._workspace.ask(sequence, message)

    def _descriptors(self, sequence: int, message: Fds) -> None:
        taker = self._workspace if self._workspace.takes(message) else self._reattach
        taker.descriptors(sequence, message)

    def _resume_with_workspace(self, message: WorkspaceReturn) -> None:
        if not self.jobs.in_progress:  # else it came back with its arena
            self.jobs.resume(None, message.running_job, message.release_ns, message.deadline_ns)

    def _forget(self) -> None:
        client, node = self.client, self.client.node
        if client.token:
            if not node.recovery.awaits(client.token):
                node.clients.forget(client.token)
            client.unit.memory.forget_client(client.task.name, client.token)
            _log.info("%s disconnected", client)

    async def _give_up(self) -> None:
        client, node = self.client, self.client.node
        try:
            async with AsyncExitStack() as turns:  # files, each in a turn of its own
                turns.callback(self._forget)
                turns.push_async_callback(asyncio.sleep, 0)
                turns.callback(self._cached_lease_jobs.close)
        except Exception:
            _log.exception("%s has left, and what is written of it stays", client)
        if client.requests:
            await asyncio.wait(client.requests)
        try:
            async with AsyncExitStack() as leaving:  # from the last one to the first
                leaving.callback(self.closed.set_result, None)
                leaving.callback(node.reclaims.session_left, client.process)
                leaving.callback(node.importer_left, client.process)
                if self._death is not None:  # the pidfd serves others of this process until here
                    leaving.callback(node.watch.forget, client.process, self._death)
                if client.staging is not None:
                    leaving.callback(client.staging.close)
                leaving.push_async_callback(self._workspace.close)
                # not before: a smaller ring frees slots, and something may have been read into them
                leaving.callback(client.disown_arenas)
                for arena in client.arenas.values():
                    leaving.push_async_callback(self._give_up_arena, arena)
                leaving.callback(self.jobs.close)  # what a request has taken meanwhile
        except Exception:
            _log.exception("%s has left, and something failed at giving up what it had", client)

    async def _give_up_arena(self, arena: Arena) -> None:
        client = self.client
        await client.unit.executor.quiet(arena.words)
        await arena.close(client.unit.pool, client.node.storage, unmapped_by=None)

    def _hello(self, sequence: int, message: Hello) -> None:
        client, node = self.client, self.client.node
        if client.token:
            raise ConnectionViolation("HELLO was sent twice", out_of_order=True)
        if message.minor < MINOR:
            told = (
                f"the library of this program speaks protocol 1.{message.minor} and the agent "
                f"1.{MINOR}; start the program again with the agent's library"
            )
            client.refuse(sequence, ProtocolError(ErrorCode.UNSUPPORTED_VERSION, told))
            client.connection.close()
            return
        kind = _DEVICE_KINDS[message.device]
        device = client.unit.device
        if kind != device.kind:
            client.refuse(
                sequence,
                NotAdmitted(f"this task has a {device.kind} device, not {kind}"),
            )
            client.connection.close()
            return
        if device.lost:
            client.refuse(sequence, NotAdmitted(f"{client.unit.name} is lost; try again later"))
            client.connection.close()
            return
        if message.reattach_token == 0:
            node.recovery.begins_again(client.task.name, client.process)
        elif client.follows(message.reattach_token):
            client.connection.pause()  # what it offers is read when nobody else has it
            client.spawn(sequence, self._welcome_when_alone(sequence, message))
            return
        self._welcome(sequence, message)

    async def _welcome_when_alone(self, sequence: int, message: Hello) -> None:
        while before := self.client.follows(message.reattach_token):
            await asyncio.wait(before)
        if not self.client.connection.closed:
            self._welcome(sequence, message)

    def _welcome(self, sequence: int, message: Hello) -> None:
        client, node, device = self.client, self.client.node, self.client.unit.device
        known = node.recovery.record_of(message.reattach_token, client.task.name, client.process)
        client.token = known.token if known else secrets.randbits(63) | 1
        client.process_name = printable(message.process_name)
        self.jobs.returned = message.reattach_token != 0
        client.connection.takes_descriptors = self.jobs.returned and (
            known is not None
            or client.unit.pool.expects
            or client.unit.pool.maps_any(client.process)  # it lost its connection, not its agent
        )
        limits, registration = node.config.limits, client.task.registration
        if registration.training:  # whoever has the device, it stays
            kept_bytes = registration.plan.workspace_bytes
            client.unit.memory.add_unmanaged(client.task.name, client.token, kept_bytes)
        if client.task.plan.extent_count and not message.reattach_token:
            client.unit.memory.starts(client.task.name, client.token)
        client.staging = device.create_staging(limits.staging_slots)
        if known is None:  # else what was written down stays until its arenas are back
            client.write_down()
        flags = WelcomeFlags.RECORD_OUTPUTS if registration.record_outputs else WelcomeFlags(0)
        if registration.preemption is not None:
            flags |= WelcomeFlags.PREEMPTIBLE
        if self._cached_lease_jobs.prepare():
            flags |= WelcomeFlags.CACHED_LEASE
            if not registration.training:
                flags |= WelcomeFlags.WARMUPS_TAKE
        if message.reattach_token:
            flags |= WelcomeFlags.SAYS_HELD
        if client.task.reads_unseen:
            flags |= WelcomeFlags.READS_UNSEEN
        client.reply(
            sequence,
            Welcome(
                reattach_token=client.token,
                extent_bytes=device.extent_bytes,
                period_ns=registration.period_ns,
                deadline_ns=registration.deadline_ns,
                flags=flags,
                staging_slots=limits.staging_slots,
                max_arenas=limits.arenas,
                task_name=client.task.name,
                device_uuid=device.uuid,
            ),
        )
        client.send_descriptors(sequence, 0, DescriptorKind.STAGING, [client.staging.export()])
        self._cached_lease_jobs.send(sequence)
        _log.info("%s %s", client, "is back" if known else "connected")
        self._reattach.begins(comes_back=message.reattach_token != 0)

    def _process_died(self, _process: Process) -> None:
        self.client.connection.close()

    def _client_error(self, _sequence: int, message: Error) -> None:
        _log.warning("%s reports: %r", self.client, message.reason)
