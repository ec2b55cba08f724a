"""A program that does not die when it is killed keeps nothing that others wait for.

Its tracer stops it at its exit, before the kernel closes what it has: sockets, memory, locks. None
of its code runs any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import RawClient, RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

PTRACE_SEIZE, TRACE_EXIT = 0x4206, 0x40
EXTENTS = 5
LIBRARY = ctypes.CDLL(None, use_errno=True)
Deed = Callable[[RawClient], object]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """One that is impatient with stuck jobs."""
    made = AgentProcess(tmp_path, job_limit_s=0.5, revoke_grace_s=0.5, holder_grace_s=0.5)
    made.start()
    yield made
    assert made.stop() == 0


@contextmanager
def traced_program(agent: AgentProcess, deed: Deed) -> Iterator[int]:
    """A client of `hostile` that has done a deed, and then does nothing; yields its pid.

    Its parent traces it, and does nothing either; at the end the parent is gone.
    """
    reading, writing = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        child = os.fork()
        if child == 0:
            deed(agent.client("hostile"))
            os.write(writing, b"%d" % os.getpid())
            signal.pause()
        LIBRARY.ptrace(PTRACE_SEIZE, child, 0, TRACE_EXIT)
        signal.pause()
    os.close(writing)
    try:
        yield int(os.read(reading, 16))
    finally:
        os.close(reading)
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def begins(client: RawClient) -> None:
    client.begin(p.NO_ARENA)


def streams(client: RawClient) -> None:
    client.load(content(1, EXTENTS))
    client.begin(0)


def has_a_workspace(client: RawClient) -> None:
    client.ask(p.Workspace(EXTENT_BYTES, p.WorkspaceFlags.PRESERVE), p.WorkspaceLent)
    client.expect_descriptors(p.DescriptorKind.WORKSPACE, 1)
    client.expect_descriptors(p.DescriptorKind.BACKUP, 1)
    client.begin(p.NO_ARENA)


def waits_in_more_connections(client: RawClient) -> None:
    """Each of them wants the device."""
    begins(client)
    for _ in range(3):
        other = RawClient(Path(client.socket.getpeername()))
        other.hello()
        other.begin(p.NO_ARENA, wait=False)


@pytest.mark.parametrize("deed", [begins, streams, has_a_workspace, waits_in_more_connections])
def test_what_it_had_is_others(agent: AgentProcess, deed: Deed) -> None:
    its_plan = plan(EXTENTS, resident=(1,), ring=2, workspace=EXTENT_BYTES)
    agent.register("hostile", its_plan, domain="alone")
    agent.register("fellow", plan(EXTENTS, workspace=EXTENT_BYTES), domain="alone")
    agent.register("other", plan(EXTENTS))
    with traced_program(agent, deed) as pid:
        other = agent.client("other")
        loaded = other.load(content(2, EXTENTS))
        job = other.begin(0)
        assert loaded.read_in_job() == content(2, EXTENTS)
        other.end(job)
        assert state(pid) == "t"
        assert not agent.task("hostile")["clients"]
        assert [one["kind"] for one in agent.task("hostile")["notices"]][-1] == "outliving"
        its_next_process_is_told(agent, deed)
    wait_until(lambda: agent.lent() == 0, "its memory is free when it is dead")
    assert agent.extents()["draining"] == 0
    again = agent.client("hostile")
    again.load(content(1, EXTENTS))
    again.end(again.begin(0))


def its_next_process_is_told(agent: AgentProcess, deed: Deed) -> None:
    again = agent.client("hostile")
    if deed is streams:
        with pytest.raises(RefusedError, match="still mapped by processes that gave them up"):
            again.reserve(EXTENTS * EXTENT_BYTES)
    elif deed is has_a_workspace:
        for client in (again, agent.client("fellow")):
            with pytest.raises(RefusedError, match="killed inside a job, has not ended"):
                client.ask(p.Workspace(EXTENT_BYTES, p.WorkspaceFlags(0)), p.WorkspaceLent)
    again.end(again.begin(p.NO_ARENA))
    again.close()
