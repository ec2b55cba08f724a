"""Sessions under a state machine: clients, messages in any grouping into writes, deaths, leaks.

Up to four clients of two tasks talk to the agent's own server, sessions, executor and storage, in
this process; only their processes are made up (`Deaths`), so that they can die here. Frames wait in
a client until they are sent together. After each step the invariants of sessions hold, and at the
end, when all clients are dead, nothing is left of them and the device is granted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)
from tests.integration.agent.agent_process import EXTENT_BYTES, plan
from tests.integration.agent.hostile.test_hostile_sequences import MESSAGES
from tests.shares import share

from tierline_agent import app
from tierline_agent.config import AgentConfig
from tierline_agent.devices.preparation import Prepared
from tierline_agent.errors import StreamFailed
from tierline_agent.processes.identity import Peer, Process, ProcessWatch
from tierline_agent.registration import parse_registration
from tierline_agent.sessions import loading
from tierline_agent.sessions.server import TaskServer
from tierline_agent.sessions.session import Session
from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

MEMORY = "/dev/shm"  # noqa: S108 - dram is a tmpfs, and so is the agent's run_dir
CLIENTS = 4
HOURS_NS = 10**13
EXTENTS, RESIDENT = 5, (1, 3)
TURNS = 6
AT_ONCE = loading._LENT_AT_ONCE, loading._TAKEN_AT_ONCE
STEPS = 200
PATIENCE_S = 20.0
WHICH = st.integers(0, CLIENTS - 1)
NOW = st.booleans()
"""Whether a frame is sent now, with those that wait."""
IN_A_JOB = st.one_of(
    st.just(p.Rewind(1, 0, 0, 0)),
    st.sampled_from(
        [
            p.Rewind(1, 0, 0, 0),
            p.JobEnd(1, 0, 0, 0, 0),
            p.JobBegin(1, 0, p.JobFlags(0), 0, 1 << 60),
            p.Fetch(0, 1, 0),
            p.Yield(1, 0, 0, 0, 1 << 60, p.JobFlags(0)),
            p.Workspace(EXTENT_BYTES, p.WorkspaceFlags.PRESERVE),
            p.Ack(1),
        ]
    ),
)


class Deaths(ProcessWatch):
    """Processes that this test makes up, and ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._events = loop
        self._numbers = itertools.count(1 << 30)
        self._tickets = itertools.count()
        self._living: dict[Process, dict[int, Callable[[Process], None]]] = {}
        self.newest = Process(0, 0)
        self.connects_again: Process | None = None
        """The one that connects next; None: a new one."""
        self.sockets: dict[Process, list[socket.socket]] = {}
        self.traced: set[Process] = set()
        """Their tracers stop them at their exit: they do not die when they are killed."""

    def identify(self, _connection: socket.socket) -> Peer:
        known, self.connects_again = self.connects_again, None
        self.newest = known or Process(next(self._numbers), 1)
        self._living.setdefault(self.newest, {})
        return Peer(self.newest, 0)

    def lives(self, process: Process) -> bool:
        return process in self._living

    def on_death(self, process: Process, callback: Callable[[Process], None]) -> int:
        ticket = next(self._tickets)
        if process in self._living:
            self._living[process][ticket] = callback
        else:
            self._events.call_soon(callback, process)
        return ticket

    def forget(self, process: Process, ticket: int) -> None:
        self._living.get(process, {}).pop(ticket, None)

    def kill(self, process: Process) -> bool:
        known = process in self._living
        if process not in self.traced:
            self.die(process)
            for one in self.sockets.pop(process, ()):  # as the kernel does
                one.close()
        return known

    def die(self, process: Process) -> None:
        for callback in self._living.pop(process, {}).values():
            self._events.call_soon(callback, process)


class Faults(logging.Handler):
    """What the agent says of faults that it did not expect: with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        if failure is not None and not isinstance(failure, StumbledError):
            self.found.append(f"{record.getMessage()}: {failure!r}")

    def note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What escaped into the event loop."""
        if not isinstance(context.get("exception"), StumbledError):
            self.found.append(str(context))


class StumbledError(Exception):
    """What this test has a step of the way out fail with, when it is done."""


class Agent:
    """The agent's parts, put together as the agent does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.undo = ExitStack()
        folder = Path(self.undo.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        store = folder / "dram"
        for name in ("state", "run"):
            (folder / name).mkdir()
        config = AgentConfig.model_validate(
            {
                "state_dir": str(folder / "state"),
                "run_dir": str(folder / "run"),
                "device": {"kind": "cpu", "fast_bytes": 24 << 16, "extent_bytes": EXTENT_BYTES},
                "tiers": [{"name": "dram", "path": str(store), "size_bytes": 1 << 20}],
                "revoke_grace_s": 600,
            }
        )
        devices, storage, book, _ = app._open(config, Prepared({}, {}))
        self.undo.callback(storage.close)
        self.node = self.loop.run_until_complete(self._assemble(config, devices, storage, book))
        self.watch = Deaths(self.loop)
        self.node.watch = self.node.interventions.killing._watch = self.watch
        self.server = TaskServer(self.node, folder / "run" / "tasks")
        self.paths = [self._register(name) for name in ("mean", "other")]
        self.unit = self.node.units["cpu"]
        self.run_dir = folder / "run"
        self.faults = Faults()
        self.loop.set_exception_handler(self.faults.note)
        logging.getLogger("tierline_agent").addHandler(self.faults)
        self.undo.callback(logging.getLogger("tierline_agent").removeHandler, self.faults)

    async def _assemble(self, *parts: Any) -> Any:
        config, devices, storage, book = parts
        return await app._assemble(config, devices, storage, book, self.undo)

    def _register(self, name: str) -> Path:
        values = {
            "name": name,
            "domain": name,
            "period_ns": 10**9,
            "deadline_ns": 10**9,
            "plan": plan(EXTENTS, resident=RESIDENT, ring=2, workspace=EXTENT_BYTES),
        }
        return self.server.open(self.node.registry.register(parse_registration(values)))

    def stumble(self, owner: object, name: str) -> None:
        """The next call of a method does what it should, and fails."""
        plain = getattr(owner, name)

        def once(*arguments: Any) -> None:
            setattr(owner, name, plain)
            plain(*arguments)
            raise StumbledError(name)

        setattr(owner, name, once)

    def turn(self, count: int = TURNS) -> None:
        """Let the event loop turn."""

        async def turn() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    def until(self, condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"never happened: {what}"
            self.turn()

    def close(self) -> None:
        self.server.close()
        self.turn()
        self.undo.close()
        self.unit.pool.close()  # an agent that ends leaves extents to those that map them
        self.loop.close()


class Client:
    """One client: what it has not sent, and what it has read."""

    def __init__(self, agent: Agent, task: int, process: Process | None = None) -> None:
        """`process` has connections already; None: a new one."""
        self.agent = agent
        agent.watch.connects_again = process
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(agent.paths[task]))
        agent.turn()
        self.process = agent.watch.newest
        agent.watch.sockets.setdefault(self.process, []).append(self.socket)
        self.socket.setblocking(False)
        self.waiting = b""
        self.sequences = itertools.count(1)
        self._decoder = p.Decoder()
        self.read: list[p.Message] = []
        self.ended = False
        """The agent has closed this connection."""
        self.loaded = False
        """It has arena 0, sealed, unless it has given that back."""
        self._open = [self.socket]

    def say(self, message: p.Message, *, now: bool, descriptors: int = 0) -> None:
        self.waiting += p.encode(message, next(self.sequences))
        if now or descriptors:
            self.flush(descriptors)

    def flush(self, descriptors: int = 0) -> None:
        data, self.waiting = self.waiting, b""
        with suppress(OSError):
            if data:
                socket.send_fds(self.socket, [data], [0] * descriptors)
        self.agent.turn()
        self.listen()

    def listen(self) -> None:
        with suppress(BlockingIOError):
            while not self.ended:
                try:
                    data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 253)
                except BlockingIOError:
                    raise
                except OSError:  # the agent had not read all, or it is closed here
                    data, descriptors = b"", []
                for descriptor in descriptors:
                    os.close(descriptor)
                self.ended = not data
                self._decoder.feed(data)
                self.read += [message for _, message in self._decoder]

    def await_answer(self, kind: type[p.Message], count: int = 1) -> bool:
        """Wait for so many; False when an ERROR came, or the connection ended."""

        self.read.clear()

        def over() -> bool:
            self.listen()
            found = sum(isinstance(message, kind) for message in self.read)
            failed = any(isinstance(message, p.Error) for message in self.read)
            return found >= count or failed or self.ended

        self.flush()
        self.agent.until(over, f"an answer to {self}")
        return sum(isinstance(message, kind) for message in self.read) >= count

    def is_granted(self) -> bool:
        """Whether it has the device."""
        self.listen()
        return any(isinstance(message, p.Grant) for message in self.read)

    def left(self) -> bool:
        """Whether the agent has closed all connections of its process."""
        return all(
            session.client.process != self.process for session in self.agent.server.sessions()
        )

    def close(self) -> None:
        self.socket.close()


class Sessions(RuleBasedStateMachine):
    """What may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent()
        self.clients: list[Client | None] = [None] * CLIENTS
        self.abandoned: list[Process] = []
        """They closed their connections, and live."""
        self.outliving: list[Client] = []
        """They were killed, and neither died nor closed anything."""
        self.sessions: set[Session] = set()
        """All that there were."""

    def _client(self, which: int) -> Client:
        client = self.clients[which]
        if client is None:
            client = self.clients[which] = Client(self.agent, which % 2)
            client.say(p.Hello(p.Device.CPU, 0, "x", p.MINOR), now=True)
        return client

    @rule(which=WHICH, message=MESSAGES, now=NOW, descriptors=st.sampled_from([0] * 9 + [1, 3]))
    def anything(self, which: int, message: p.Message, now: bool, descriptors: int) -> None:
        self._client(which).say(message, now=now, descriptors=descriptors)

    @rule(which=WHICH)
    def load(self, which: int) -> None:
        """A client that has an arena, sealed, if no other one of its task has."""
        self._load(self._client(which))

    def _load(self, client: Client) -> bool:
        if not client.loaded:
            client.flush()
            client.say(p.Reserve(0, 1, EXTENTS * EXTENT_BYTES, 0), now=False)
            if not client.await_answer(p.Reserved):
                return False
            for extent in range(EXTENTS):
                client.say(p.Store(0, extent, 0, EXTENT_BYTES), now=False)
            if client.await_answer(p.Stored, EXTENTS):
                layers = tuple(p.LayerSpan(extent, extent) for extent in range(EXTENTS))
                client.say(p.Seal(0, layers), now=False)
                client.loaded = client.await_answer(p.Sealed)
        return client.loaded

    @rule(large=st.booleans())
    def plans_are_large(self, large: bool) -> None:
        """Each extent of an arena is taken in a turn of its own, or all in one."""
        loading._LENT_AT_ONCE, loading._TAKEN_AT_ONCE = (1, 1) if large else AT_ONCE

    @rule(which=WHICH, messages=st.lists(IN_A_JOB, min_size=1, max_size=4), leaves=NOW)
    def in_a_job(self, which: int, messages: list[p.Message], leaves: bool) -> None:
        """Messages that arrive at once while a stream is under way, and maybe the end, too."""
        client = self._client(which)
        if not self._load(client):
            return
        client.say(p.JobBegin(1, 0, p.JobFlags(0), 0, 1 << 60), now=True)
        for message in messages:
            client.say(message, now=False)
        client.flush()
        if leaves:
            client.close()
        self.agent.turn()

    @rule(which=WHICH, arena=st.sampled_from([0, 0, p.NO_ARENA]), now=NOW)
    def begin(self, which: int, arena: int, now: bool) -> None:
        self._client(which).say(p.JobBegin(1, arena, p.JobFlags(0), 0, 1 << 60), now=now)

    @rule(which=WHICH, now=NOW)
    def rewind(self, which: int, now: bool) -> None:
        self._client(which).say(p.Rewind(1, 0, 0, 0), now=now)

    @rule(which=WHICH, now=NOW)
    def end(self, which: int, now: bool) -> None:
        self._client(which).say(p.JobEnd(1, 0, 0, 0, 0), now=now)

    @rule(which=WHICH, now=NOW, preserve=st.booleans())
    def workspace(self, which: int, now: bool, preserve: bool) -> None:
        flags = p.WorkspaceFlags.PRESERVE if preserve else p.WorkspaceFlags(0)
        self._client(which).say(p.Workspace(EXTENT_BYTES, flags), now=now)

    @rule(which=WHICH)
    def connect_again(self, which: int) -> None:
        """A process has one more connection to its task, or loses the one that it had."""
        other = (which + 2) % CLIENTS
        client = self.clients[which]
        if client is not None and self.agent.watch.lives(client.process):
            gone, self.clients[other] = self.clients[other], None
            if gone is not None:
                gone.close()
                self.abandoned.append(gone.process)
            again = Client(self.agent, which % 2, client.process)
            again.say(p.Hello(p.Device.CPU, 0, "x", p.MINOR), now=True)
            self.clients[other] = again

    @rule(which=WHICH, times=st.integers(1, 40))
    def read_nothing(self, which: int, times: int) -> None:
        """Answers wait, with what they lend."""
        client = self._client(which)
        reserve, free = p.Reserve(0, 1, EXTENTS * EXTENT_BYTES, 0), p.Free(0)
        for message in (reserve, free) * times:
            with suppress(OSError):
                client.socket.send(p.encode(message, next(client.sequences)))
            self.agent.turn(2)

    @rule(which=WHICH)
    def send(self, which: int) -> None:
        self._client(which).flush()

    @rule(which=WHICH, sends=NOW, before=st.integers(0, 4), between=st.integers(0, 6))
    def leave(self, which: int, sends: bool, before: int, between: int) -> None:
        """Die so many turns after the last messages; the socket is closed before, or after."""
        client = self.clients[which]
        if client is None:
            return
        with suppress(OSError):
            if sends and client.waiting:
                client.socket.send(client.waiting)
        self.agent.turn(before)
        if between:
            client.close()
        self.agent.turn(between)
        self.agent.watch.die(client.process)
        self.agent.turn(1)
        client.close()
        self.clients[which] = None

    @rule(which=WHICH)
    def abandon(self, which: int) -> None:
        """Close the connection, and live on with all that was lent."""
        client = self.clients[which]
        if client is not None:
            client.close()
            self.abandoned.append(client.process)
            self.clients[which] = None

    @rule(which=WHICH)
    def outlive(self, which: int) -> None:
        """Be killed, and stop on the way out with everything open."""
        client = self.clients[which]
        killing = self.agent.node.interventions.killing
        if client is not None:
            self.agent.watch.traced.add(client.process)
            if killing.kill(client.process):
                killing._pursued[client.process].timer.cancel()  # its time is now
                killing._again(client.process, 1)
            else:  # it was dead
                client.close()
            self.agent.turn()
            assert client.left()
            self.outliving.append(client)
            self.clients[which] = None

    @rule(turns=st.integers(1, 30))
    def wait(self, turns: int) -> None:
        self.agent.turn(turns)

    @rule(which=WHICH, leaves=NOW)
    def stream_fails(self, which: int, leaves: bool) -> None:
        """A job is revoked, maybe of a client that has left unnoticed so far."""
        client = self.clients[which]
        for session in list(self.agent.server.sessions()):
            job = session.jobs._job
            if client is None or job is None or session.client.process != client.process:
                continue
            if leaves:
                client.close()
            if job.granted_ns is not None:
                session.jobs._stream_failed(StreamFailed("it is a test", corrupt=False))
        self.agent.turn(1)

    @rule(name=st.sampled_from(["clients.json.new", "extents-cpu.json.new"]))
    def fill_the_disk(self, name: str) -> None:
        """A file of what is lent cannot be written, or can again."""
        obstacle = self.agent.run_dir / name
        if obstacle.is_dir():
            obstacle.rmdir()
        else:
            obstacle.unlink(missing_ok=True)  # the file that would change places with it
            obstacle.mkdir()
            for number in range(8):  # it cannot be put aside, either
                aside = obstacle.with_name(f"{name}.odd{number or ''}")
                (aside / "full").mkdir(parents=True, exist_ok=True)
        for file in self.agent.node.files:
            file.retry()

    @rule(which=WHICH, step=st.sampled_from(["settle", "reattach", "forget", "open", "records"]))
    def stumble_and_leave(self, which: int, step: str) -> None:
        """A client leaves, and a step of its way out fails."""
        client = self.clients[which]
        for session in list(self.agent.server.sessions()):
            if client is None or session.client.process != client.process:
                continue
            owner, name = {
                "settle": (session.jobs, "settle"),
                "reattach": (session._reattach, "close"),
                "forget": (session, "_forget"),
                "open": (session._cached_lease_jobs, "close"),
                "records": (session.jobs.records, "publish"),
            }[step]
            self.agent.turn()
            if not session.client.connection.closed:
                session.client.connection.close()
                self.agent.stumble(owner, name)
                self.leave(which, sends=False, before=0, between=1)

    @rule(which=WHICH, other=WHICH)
    def wait_for_hours(self, which: int, other: int) -> None:
        """One has the device, another one wants it, and nothing is heard for long."""
        for client in (self._client(which), self._client(other)):
            client.say(p.JobBegin(1, p.NO_ARENA, p.JobFlags(0), 0, 1 << 60), now=True)
        self.hours_pass()

    @rule()
    def hours_pass(self) -> None:
        """A client that keeps the device from others by then has been told to let go of it."""
        sessions = list(self.agent.server.sessions())
        for session in sessions:
            self._await_grant(session)
        for session in sessions:
            session.jobs.look(time.monotonic_ns() + HOURS_NS)
        for session in sessions:
            job, unit = session.jobs._job, self.agent.unit
            if job is not None and job.execution is not None and unit.leases.waiting:
                assert job.revoked or not unit.executor.has_device(job.execution)

    def _await_grant(self, session: Session) -> None:
        """The client with the device is told so, or gives it up, and need do nothing for that."""
        job, executor = session.jobs._job, self.agent.unit.executor

        def is_over() -> bool:
            assert job is not None
            execution = job.execution
            has_it = execution is not None and executor.has_device(execution)
            return job.granted_ns is not None or session.jobs._job is not job or not has_it

        # One that left inside a job, or was sent away, and lives on, has been killed by then.
        sent_away = [one.process for one in self.clients if one is not None and one.left()]
        for process in self.abandoned + sent_away:
            self.agent.watch.kill(process)
        if job is not None:
            self.agent.until(is_over, f"a grant of job {job.number} to {session.client}")

    @invariant()
    def no_stream_is_without_a_job(self) -> None:
        assert self.agent.unit.executor.mend() == []

    @invariant()
    def no_session_is_without_a_connection(self) -> None:
        self.agent.turn(1)
        self.sessions.update(self.agent.server.sessions())
        closed = {one for one in self.sessions if one.client.connection.closed}
        self.agent.turn(1)  # a session is told in a turn of its own
        assert not closed.intersection(self.agent.server.sessions())

    @invariant()
    def nothing_failed_that_is_not_expected(self) -> None:
        assert self.agent.faults.found == []

    @invariant()
    def nobody_keeps_descriptors_that_nothing_announces(self) -> None:
        self.agent.turn(1)
        for session in self.agent.server.sessions():
            connection = session.client.connection
            assert not connection._received or connection._decoder.buffered_bytes

    @invariant()
    def unread_answers_hold_no_more_than_a_plan(self) -> None:
        for session in self.agent.server.sessions():
            assert session.client.connection._unsent <= 2 * EXTENTS

    @invariant()
    def the_device_is_held_by_a_job(self) -> None:
        holder = self.agent.unit.leases.holder
        jobs = [session.jobs._job for session in self.agent.server.sessions()]
        tickets = [job.execution.ticket for job in jobs if job and job.execution]
        assert holder is None or holder in tickets

    @invariant()
    def extents_add_up(self) -> None:
        pool = self.agent.unit.pool
        count = sum(pool.count_by_state().values())
        assert count * EXTENT_BYTES == pool.bytes_held <= self.agent.unit.device.fast_bytes

    @invariant()
    def no_task_has_more_than_its_plan_says(self) -> None:
        pool = self.agent.unit.pool
        for task in self.agent.node.registry:
            extents = [one for one in pool._extents.values() if one.task == task.name]
            assert len(extents) <= len(task.plan.resident_extents)
            assert len(pool._workspaces.get(task.registration.domain, ())) <= 1

    def teardown(self) -> None:
        agent = self.agent
        loading._LENT_AT_ONCE, loading._TAKEN_AT_ONCE = AT_ONCE
        try:
            for client in self.clients:
                if client is not None:
                    client.close()
                    agent.watch.die(client.process)
            for client in self.outliving:
                client.close()
            for process in [*self.abandoned, *agent.watch.traced]:
                agent.watch.die(process)
            for obstacle in agent.run_dir.glob("*.new"):
                if obstacle.is_dir():
                    obstacle.rmdir()
            agent.until(lambda: not [*agent.server.sessions()], "all have left")
            agent.until(lambda: not agent.server._leaving, "all is given up")
            states = agent.unit.pool.count_by_state
            agent.until(lambda: agent.unit.leases.holder is None, "the device is free")
            busy = ("resident", "workspace", "draining")
            agent.until(
                lambda: not any(n for s, n in states().items() if s.value in busy),
                "extents are free",
            )
            assert all(task.arena_owner is None for task in agent.node.registry)
            assert not any(task.arena_users for task in agent.node.registry)
            assert not any(one.jobs._job or one.jobs._revocation._grace for one in self.sessions)
            assert agent.node.storage.tiers["dram"].store.statistics().referenced == 0
            last = Client(agent, 0)
            last.say(p.Hello(p.Device.CPU, 0, "x", p.MINOR), now=True)
            last.say(p.Reserve(0, 1, EXTENTS * EXTENT_BYTES, 0), now=True)
            last.say(p.JobBegin(1, p.NO_ARENA, p.JobFlags(0), 0, 1 << 60), now=False)
            last.read.clear()
            last.flush()
            agent.until(last.is_granted, "the device is granted")
            last.close()
            agent.watch.die(last.process)
            agent.until(lambda: not agent.server._leaving and not [*agent.server.sessions()], "end")
        finally:
            agent.close()


Sessions.TestCase.settings = settings(
    settings.get_profile("ci"),
    max_examples=share(150, 500),
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a fault is waited for: no shrinking
)
TestSessions = Sessions.TestCase
