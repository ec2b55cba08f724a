"""Hundreds of bad behaviours of one task, and another one that notices none of them.

Each behaviour is done by a process of its own. Meanwhile a good task runs jobs, whose outputs are
known, and a prober asks for its counters. The agent has as many descriptors and as much memory
afterwards as before.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, TaskProcess, plan, wait_until
from tests.integration.agent.behaviours import Behaviour
from tests.integration.agent.behaviours.descriptors import descriptors
from tests.integration.agent.behaviours.ends import ends
from tests.integration.agent.behaviours.frames import frames
from tests.integration.agent.behaviours.memory import memory
from tests.integration.agent.behaviours.sequences import sequences
from tests.integration.agent.behaviours.wire import Wire

pytestmark = pytest.mark.slow

FORKED = multiprocessing.get_context("fork")
GOOD_EXTENTS = 8
STALLED_S = 2.0
"""On an idle machine with two cores nothing takes more than 50 ms; this is for a busy one."""
PERIOD_S = 0.02
DESCRIPTORS = 8
MEMORY_BYTES = 48 << 20
KINDS = {
    "frames": frames,
    "sequences": sequences,
    "descriptors": descriptors,
    "memory": memory,
    "ends": ends,
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    agent = AgentProcess(
        tmp_path_factory.mktemp("behaviours"),
        fast_extents=48,
        revoke_grace_s=0.5,
        holder_grace_s=0.5,
    )
    agent.start()
    agent.register("good", plan(GOOD_EXTENTS, resident=(1,), ring=3), domain="nice")
    mean = plan(16, resident=(0, 1, 2, 3), ring=5, workspace=4 << 16)
    agent.register("mean", mean, domain="evil")
    yield agent
    assert agent.stop() == 0


@dataclass
class Witness:
    """The good task, and the prober."""

    program: TaskProcess
    responses_s: list[float] = field(default_factory=list)
    outputs: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)

    def run(self, done: threading.Event) -> None:
        while not done.wait(PERIOD_S):
            began_s = time.monotonic()
            self.outputs.add(self.program.do("job"))
            self.responses_s.append(time.monotonic() - began_s)


def probe(path: Path, results: Connection) -> None:
    """Ask for counters again and again, until told to end; then say how long each answer took."""
    wire, waits_s = Wire(path), []
    while not results.poll(0.004):
        began_s = time.monotonic()
        wire.ask("Stats")
        waits_s.append(time.monotonic() - began_s)
    results.send(waits_s)


@contextmanager
def witness(agent: AgentProcess, program: TaskProcess) -> Iterator[Witness]:
    seen = Witness(program)
    ours, theirs = FORKED.Pipe()
    prober = FORKED.Process(target=probe, args=(socket_of(agent, "good"), theirs))
    prober.start()
    done = threading.Event()
    runner = threading.Thread(target=seen.run, args=(done,))
    runner.start()
    try:
        yield seen
    finally:
        done.set()
        runner.join()
        ours.send("end")
        seen.waits_s = ours.recv()
        prober.join()


def socket_of(agent: AgentProcess, task: str) -> Path:
    return agent.run_dir / "tasks" / task / "tierline.sock"


def do_all(path: Path, behaviours: list[Behaviour], results: Connection) -> None:
    """Have each done by a process of its own; says what failed, and how."""
    failed = {}
    for name, deed in behaviours:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                deed(path)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            failed[name] = status
    results.send(failed)


def held(agent: AgentProcess) -> tuple[int, int]:
    """Open descriptors without those of extents, and bytes of memory of its own."""
    assert agent.process is not None
    proc = Path(f"/proc/{agent.process.pid}")
    status = (proc / "status").read_text().split("RssAnon:")[1]
    of_extents = 2 * sum(agent.extents().values())  # a mapping has one of its own
    descriptors = len(list((proc / "fd").iterdir())) - of_extents
    return descriptors, int(status.split()[0]) << 10


def quiet(agent: AgentProcess) -> None:
    wait_until(lambda: not agent.task("mean")["clients"], "the agent lets go of them")
    wait_until(lambda: agent.extents()["draining"] == 0, "it knows that they are dead")


@pytest.fixture(scope="module")
def program(agent: AgentProcess) -> TaskProcess:
    return agent.program("good", 1, GOOD_EXTENTS)


@pytest.mark.parametrize("kind", KINDS)
def test_no_behaviour_is_noticed_by_others(
    agent: AgentProcess, program: TaskProcess, kind: str
) -> None:
    behaviours = list(KINDS[kind]())
    path = socket_of(agent, "mean")
    Wire(path).socket.close()
    quiet(agent)
    before = held(agent)
    with witness(agent, program) as seen:
        ours, theirs = FORKED.Pipe()
        hostile = FORKED.Process(target=do_all, args=(path, behaviours, theirs))
        hostile.start()
        failed = ours.recv()
        hostile.join()
    quiet(agent)
    print(
        f"{len(behaviours)} {kind}: worst response {max(seen.responses_s) * 1e3:.1f} ms of "
        f"{len(seen.responses_s)}, worst wait {max(seen.waits_s) * 1e3:.1f} ms of "
        f"{len(seen.waits_s)}; descriptors and bytes {before} before, {held(agent)} after"
    )
    assert failed == {}
    assert seen.outputs == {program.expected}
    assert max(seen.responses_s) < STALLED_S
    assert max(seen.waits_s) < STALLED_S
    log = agent.log.read_text(errors="replace")
    assert "unexpectedly" not in log
    assert "had no job" not in log
    wait_until(lambda: held(agent)[0] <= before[0] + DESCRIPTORS, "descriptors are closed")
    assert held(agent)[1] <= before[1] + MEMORY_BYTES
    assert agent.extents()["workspace"] == 0
