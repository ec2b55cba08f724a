"""A process that is killed and does not die is lost for everybody, and killed until it is dead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.processes import killing as subject
from tierline_agent.processes.identity import Process, ProcessWatch, start_ticks
from tierline_agent.processes.killing import Killing

TRACER = """
import ctypes, os, signal, sys
child = os.fork()
if child == 0:
    signal.pause()
ctypes.CDLL(None).ptrace(0x4206, child, 0, 0x40)  # PTRACE_SEIZE, PTRACE_O_TRACEEXIT
print(child, flush=True)
signal.pause()
"""


@contextmanager
def traced() -> Iterator[tuple[int, Process]]:
    """A tracer, and its child, which is stopped at its exit."""
    with subprocess.Popen([sys.executable, "-c", TRACER], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline())
        ticks = start_ticks(pid)
        assert ticks is not None
        try:
            yield tracer.pid, Process(pid, ticks)
        finally:
            tracer.kill()


class Agent:
    """What kills, and what it says."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.watch = ProcessWatch(loop)
        self.killing = Killing(self.watch, loop)
        self.outlived: list[Process] = []
        self.killing.on_outlived.append(self.outlived.append)
        self.dead = asyncio.Event()

    def kill(self, process: Process) -> bool:
        self.watch.on_death(process, lambda _: self.dead.set())
        return self.killing.kill(process)

    def close(self) -> None:
        self.killing.close()
        self.watch.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "DIES_WITHIN_S", 0.05)


@in_loop
async def test_one_that_dies_is_not_pursued() -> None:
    with closing(Agent()) as agent, subprocess.Popen(["sleep", "600"]) as program:
        ticks = start_ticks(program.pid)
        assert ticks is not None
        process = Process(program.pid, ticks)
        assert agent.kill(process)
        await agent.dead.wait()
        await asyncio.to_thread(program.wait)
        assert not agent.killing.has_killed(process)
        assert not agent.killing.kill(process)


@in_loop
async def test_one_that_does_not_is_told_once_and_its_tracer_lives() -> None:
    """It is of the agent's own group, as the shell of whoever looks into it."""
    with closing(Agent()) as agent, traced() as (tracer, process):
        assert agent.kill(process)
        assert agent.killing.has_killed(process)
        while not agent.outlived:
            await asyncio.sleep(0.01)  # the time is what is waited for
        agent.killing._again(process, 0.01)
        assert agent.outlived == [process]
        assert agent.killing.has_outlived(process)
        assert agent.killing.outliving == 1
        assert start_ticks(tracer) is not None
        os.kill(tracer, signal.SIGKILL)
        await agent.dead.wait()
        assert not agent.killing.has_killed(process)
        assert agent.killing.outliving == 0


@in_loop
async def test_a_tracer_of_its_group_is_killed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_group_of", lambda pid: "agent" if pid == "self" else "pod")
    with closing(Agent()) as agent, traced() as (tracer, process):
        agent.kill(process)
        await agent.dead.wait()
        assert agent.outlived == [process]
        while start_ticks(tracer) is not None:
            await asyncio.sleep(0)
