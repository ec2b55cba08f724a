"""The state of one client, and the verbs that all subjects of a session share.

Invariant: a request that was spawned is answered exactly once, with its reply or an ERROR; the
number of such requests is bounded, because reading pauses at the bound. One that works on an arena
is counted there before the next message is read, so that no later message finds it idle.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from tierline_agent.context import Node
from tierline_agent.devices.base import Staging
from tierline_agent.errors import ConnectionViolation, QuotaExceeded
from tierline_agent.memory.arenas import Arena
from tierline_agent.memory.extents import Share
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.processes.identity import Peer, Process
from tierline_agent.registry import Task
from tierline_agent.scheduling.recovery import ClientRecord
from tierline_agent.sessions.replies import error_for, internal_error, is_expected
from tierline_agent.transport.connection import Connection, Handler
from tierline_agent.transport.protocol import MAX_DESCRIPTORS, DescriptorKind, Fds, Message


class Client:
    """One connection of one process of one task."""

    def __init__(
        self, node: Node, task: Task, peer: Peer, connection: socket.socket, handler: Handler
    ) -> None:
        self.node = node
        self.task = task
        self.unit = node.unit_of(task)
        self.peer = peer
        self.token = 0
        self.process_name = ""
        self.arenas: dict[int, Arena] = {}
        self.leaving: list[Arena] = []
        """Arenas that it freed, whose extents are not given up yet."""
        self.has_workspace = False
        """Whether it has a workspace in extents of the agent."""
        self.staging: Staging | None = None
        self.requests: set[asyncio.Task[None]] = set()
        self.closed: asyncio.Future[None] = node.loop.create_future()
        """Done when it has left and all is given up."""
        self.deadline_ns = BACKGROUND_NS
        """Deadline of its job in progress, by which its fetches are ordered."""
        self.job_arena: Arena | None = None
        """The arena of its job in progress."""
        self.close_elsewhere: Callable[[Iterable[int]], None] = partial(
            node.closer.close, task.name
        )
        """Takes over descriptors that came from the client."""
        self.connection = Connection(
            connection,
            node.loop,
            node.readiness,
            handler,
            node.config.limits.outgoing_bytes,
            self.close_elsewhere,
            node.in_flight,
        )

    @property
    def process(self) -> Process:
        """The process at the other end."""
        return self.peer.process

    @property
    def domain(self) -> str:
        """Its trust domain."""
        return self.task.registration.domain

    @property
    def share(self) -> Share:
        """What its task may have of resident extents."""
        return Share(self.task.name, self.domain, len(self.task.plan.resident_extents))

    def __str__(self) -> str:
        return f"{self.task.name} (process {self.process.pid})"

    # -- answers

    def reply(self, sequence: int, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a reply."""
        self.connection.send(message, sequence, descriptors)

    def refuse(self, sequence: int, failure: BaseException) -> None:
        """Answer a request with an ERROR; the connection stays."""
        known = is_expected(failure)
        self.connection.send(error_for(failure) if known else internal_error(failure), sequence)

    def send_descriptors(
        self, sequence: int, arena: int, kind: DescriptorKind, descriptors: Sequence[int]
    ) -> None:
        """Send descriptors, numbered from 0, in as many FDS messages as they need."""
        for first in range(0, len(descriptors), MAX_DESCRIPTORS):
            part = descriptors[first : first + MAX_DESCRIPTORS]
            self.reply(sequence, Fds(arena=arena, kind=kind, first=first, count=len(part)), part)

    def spawn(
        self, sequence: int, request: Coroutine[Any, Any, None], arena: Arena | None = None
    ) -> None:
        """Work on a request that takes time, and on `arena`; answer a failure with an ERROR."""
        if arena is not None:
            arena.operations += 1
        work = self.node.loop.create_task(self._answer(sequence, request, arena))
        self.requests.add(work)
        work.add_done_callback(self._answered)
        if len(self.requests) >= self.node.config.limits.outstanding_requests:
            self.connection.pause()

    async def _answer(
        self, sequence: int, request: Coroutine[Any, Any, None], arena: Arena | None
    ) -> None:
        try:
            await request
        except ConnectionViolation as failure:
            self.refuse(sequence, failure)
            self.connection.close()
        except Exception as failure:  # every failure becomes an answer
            self.refuse(sequence, failure)
        finally:
            if arena is not None:
                arena.operations -= 1

    def _answered(self, work: asyncio.Task[None]) -> None:
        self.requests.discard(work)
        if len(self.requests) < self.node.config.limits.outstanding_requests:
            self.connection.resume()

    # -- arenas

    def own_arenas(self) -> None:
        """Become the client that has the task's arenas.

        Raises:
            QuotaExceeded: another one has them; a second copy would take what others were granted.
        """
        if self.connection.closed:
            raise QuotaExceeded(f"process {self.process.pid} has left")
        owner = self.task.arena_owner
        if owner is not self and isinstance(owner, Client) and not owner.connection.closed:
            raise QuotaExceeded(
                f"process {owner.process.pid} has the arenas of {self.task.name}; its plan is for "
                "one process, register another task for a second one"
            )
        self.task.arena_owner = self
        self.task.arena_users.add(self)

    @property
    def awaits_others(self) -> bool:
        """Whether those that an earlier agent lent its domain's memory may still offer it."""
        return self.node.recovery.pending or self.unit.executor.is_fenced(self.domain)

    async def others_are_back(self) -> None:
        """Wait until they have."""
        await self.node.recovery.settled()
        await self.unit.executor.unfenced(self.domain)

    def those_before(self) -> list[asyncio.Future[None]]:
        """Clients that have left and have not given the task's arenas up, until they have."""
        users = self.task.arena_users
        return [
            one.closed
            for one in users
            if isinstance(one, Client) and one is not self and one.connection.closed
        ]

    def follows(self, token: int) -> list[asyncio.Future[None]]:
        """Connections that this process had before, until they have given all up.

        The one with `token` it has no more, which the agent may not have seen yet. Of others of the
        task nothing is waited for: they may wait for this one.
        """
        users = [one for one in self.task.arena_users if isinstance(one, Client)]
        own = [one for one in users if one is not self and one.process == self.process]
        for one in own:
            if one.token == token:
                one.connection.close()
        return [one.closed for one in own if one.connection.closed]

    def disown_arenas(self) -> None:
        """Let another client have the task's arenas, if this one had them."""
        self.task.arena_users.discard(self)
        if self.task.arena_owner is self:
            self.task.arena_owner = None

    def check_plan(self, extents: int, residents: int) -> None:
        """Check that the plan has so many extents more than the client has.

        Raises:
            QuotaExceeded: it has not.
        """
        plan, held = self.task.plan, [*self.arenas.values(), *self.leaving]
        extents += sum(arena.extent_count for arena in held)
        residents += sum(len(arena.residents) for arena in held)
        if extents > plan.extent_count or residents > len(plan.resident_extents):
            raise QuotaExceeded(
                f"the arenas of {self.task.name} would have {extents} extents, {residents} of them "
                f"resident, and its plan has {plan.extent_count} and {len(plan.resident_extents)}; "
                "profile the task again"
            )

    def arena(self, index: int) -> Arena:
        """An arena of this client.

        Raises:
            ConnectionViolation: it was not reserved.
        """
        arena = self.arenas.get(index)
        if arena is None:
            raise ConnectionViolation(f"arena {index} was not reserved", out_of_order=True)
        return arena

    def sealed_arena(self, index: int) -> Arena:
        """A sealed arena of this client.

        Raises:
            ConnectionViolation: it is not there or not sealed.
        """
        arena = self.arena(index)
        if not arena.sealed:
            raise ConnectionViolation(f"arena {index} is not sealed", out_of_order=True)
        return arena

    def staged(self, slot: int, length: int) -> memoryview:
        """The first `length` bytes of a staging slot.

        Raises:
            ConnectionViolation: there is no such slot or it is shorter.
        """
        if self.staging is None or slot >= self.node.config.limits.staging_slots:
            raise ConnectionViolation(f"there is no staging slot {slot}")
        if length > self.unit.device.extent_bytes:
            raise ConnectionViolation(f"a staging slot does not hold {length} bytes")
        return self.staging.slot(slot, length)

    @property
    def kept(self) -> int:
        """What it would offer back after a restart: sealed arenas, and its workspace."""
        return sum(arena.sealed for arena in self.arenas.values()) + self.has_workspace

    def write_down(self) -> None:
        """Note in the client book what must be waited for after a restart.

        Nothing of one that has left: what it was not told of it does not have.
        """
        if self.connection.closed:
            return
        kept = self.kept
        before = self.node.recovery.record_of(self.token, self.task.name, self.process)
        if before is not None and self.node.recovery.awaits(self.token):
            kept = max(kept, before.kept)
        self.node.clients.note(ClientRecord(self.token, self.task.name, self.process, kept))
