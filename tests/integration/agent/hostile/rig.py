"""An agent with a good task and a mean one, and what shows that the good one notices nothing.

A mean task's behaviours are done one after the other, each by a process of its own. Meanwhile the
good task runs jobs with known outputs, and a prober asks for its counters. The event loop of the
agent is measured (`measured_agent`). The GPU is simulated, with extents as small as on cpu, so that
both do the same.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.integration.agent.agent_process import (
    HOST_PROGRAM,
    AgentProcess,
    ProgramKind,
    TaskProcess,
    plan,
    wait_until,
)
from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.cached_leases import cached_leases, kept_leases
from tests.integration.agent.behaviours.descriptors import descriptors
from tests.integration.agent.behaviours.ends import ends
from tests.integration.agent.behaviours.frames import frames
from tests.integration.agent.behaviours.graphs import graphs, kept_graphs
from tests.integration.agent.behaviours.memory import memory
from tests.integration.agent.behaviours.sequences import sequences
from tests.integration.agent.behaviours.waiting_streams import kept_streams, waiting_streams
from tests.integration.agent.behaviours.wire import DEVICES, EXTENT, Wire
from tests.integration.agent.gpu_agent import GPU_PROGRAM, gpu_agent
from tests.integration.agent.hostile import measured_agent
from tests.native_builds import simulated_machine

FORKED = multiprocessing.get_context("fork")
GOOD_EXTENTS = 8
GOOD_RESIDENT = (1,)
FAST_EXTENTS = 48
JOB_LIMIT_S = 1.0
UNHURRIED = {"predictedJobTime": "10s", "predictedResponseTime": "20s"}
"""Of the good task: on a busy machine, too, none of its jobs is found stuck."""
PERIOD_S = 0.02
SLOWEST = 3
LONGEST_S = 60.0
"""What the agent should have ended it has not ended by then."""
SETTINGS: dict[str, Any] = {
    "module": measured_agent.__name__,
    "revoke_grace_s": 0.5,
    "holder_grace_s": 0.5,
    "job_limit_s": JOB_LIMIT_S,
}
CPU, CUDA = DEVICES["CPU"], DEVICES["CUDA"]
PROGRAMS = {CPU: HOST_PROGRAM, CUDA: ProgramKind(GPU_PROGRAM.module, EXTENT)}
ON_ALL: dict[str, Callable[[int], Iterator[Behaviour]]] = {
    "frames": frames,
    "sequences": lambda _: sequences(),
    "descriptors": lambda _: descriptors(),
    "memory": lambda _: memory(),
    "ends": lambda _: ends(),
}
ON_GPU: dict[str, Callable[[int], Iterator[Behaviour]]] = {
    **ON_ALL,
    "cached leases": lambda _: cached_leases(),
    "waiting streams": lambda _: waiting_streams(),
    "graphs": lambda _: graphs(),
    "kept": lambda _: chain(kept_leases(), kept_streams(), kept_graphs()),
}


@dataclass(frozen=True)
class Rig:
    """An agent, the good task's program, and the other task."""

    agent: AgentProcess
    program: TaskProcess
    mean: Target


def settled(agent: AgentProcess, device: int) -> Rig:
    """Both tasks are there, and the good one's program is loaded."""
    good = plan(GOOD_EXTENTS, resident=GOOD_RESIDENT, ring=3) | UNHURRIED
    agent.register("good", good, domain="nice")
    mean = plan(16, resident=(0, 1, 2, 3), ring=5, workspace=4 * EXTENT)
    agent.register("mean", mean, domain="evil")
    program = agent.program("good", 1, GOOD_EXTENTS, PROGRAMS[device])
    return Rig(agent, program, target(agent, "mean", device))


@contextmanager
def cpu_rig(folder: Path, **settings: Any) -> Iterator[Rig]:
    """On the `cpu` device, with these settings of the agent."""
    agent = AgentProcess(folder, fast_extents=FAST_EXTENTS, **SETTINGS, **settings)
    agent.start()
    yield settled(agent, CPU)
    assert agent.stop() == 0


@contextmanager
def gpu_rig(folder: Path, **settings: Any) -> Iterator[Rig]:
    """On a GPU. Its agent's calls wait while a stream of it stands at a flag, as they may there."""
    driver = {"GRANULARITY": str(EXTENT), "CALLS_WAIT": "1"}
    size_bytes = FAST_EXTENTS * EXTENT
    device = {"kind": "cuda", "fast_bytes": size_bytes, "extent_bytes": EXTENT}
    given = {"device": device, "gpu": driver, **SETTINGS, **settings}
    with simulated_machine() as machine, gpu_agent(folder, machine, **given) as agent:
        yield settled(agent, CUDA)


def target(agent: AgentProcess, task: str, device: int) -> Target:
    return Target(agent.run_dir / "tasks" / task / "tierline.sock", device)


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


def probe(good: Target, results: Connection) -> None:
    """Ask for counters again and again, until told to end; then say how long each answer took."""
    wire, waits_s = Wire(good), []
    while not results.poll(0.004):
        began_s = time.monotonic()
        wire.ask("Stats")
        waits_s.append(time.monotonic() - began_s)
    results.send(waits_s)


@contextmanager
def witness(rig: Rig) -> Iterator[Witness]:
    seen = Witness(rig.program)
    ours, theirs = FORKED.Pipe()
    good = target(rig.agent, "good", rig.mean.device)
    prober = FORKED.Process(target=probe, args=(good, theirs))
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


@dataclass
class Done:
    """What became of the behaviours."""

    failed: dict[str, str] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def slowest(self) -> str:
        """The slowest ones, and the sum of all."""
        most = sorted(self.took_s.items(), key=lambda item: -item[1])[:SLOWEST]
        return ", ".join(f"{name} {took_s:.2f} s" for name, took_s in most)


def end_of(child: int) -> str:
    """Wait for it; what was wrong with it. That it is killed is part of many behaviours."""
    process = os.pidfd_open(child)
    in_time = wait([process], LONGEST_S)
    os.close(process)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    failed = os.WIFEXITED(status) and os.WEXITSTATUS(status)
    return "it took too long" if not in_time else f"status {status}" if failed else ""


def do_all(
    mean: Target,
    behaviours: list[Behaviour],
    environment: Mapping[str, str],
    results: Connection,
) -> None:
    """Have each done by a process of its own."""
    faulthandler.disable()  # some end by a fault, on purpose
    os.environ.update(environment)
    done = Done()
    for name, deed in behaviours:
        began_s = time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                deed(mean)
                status = 0
            finally:
                os._exit(status)
        if why := end_of(child):
            done.failed[name] = why
        done.took_s[name] = time.monotonic() - began_s
    results.send(done)


def misbehave(rig: Rig, behaviours: list[Behaviour]) -> Done:
    """Have the mean task do these; what became of them."""
    ours, theirs = FORKED.Pipe()
    hostile = FORKED.Process(
        target=do_all, args=(rig.mean, behaviours, rig.agent.environment, theirs)
    )
    hostile.start()
    done: Done = ours.recv()
    hostile.join()
    return done


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
    known_dead = "it knows that they are dead, and their extents are free"
    wait_until(lambda: agent.lent() == len(GOOD_RESIDENT), known_dead)
