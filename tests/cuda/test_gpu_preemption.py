"""Jobs on a simulated GPU that give it away at their gates: C programs with the library preloaded.

The programs check every byte that their kernels read (gpu_kit.h), while another task takes the
device from them as often as it can.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.programs import left
from tests.cuda.tasks import BY_THEMSELVES, EXTENTS, PROGRAMS, Task
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.integration.agent.gpu_agent import GPU_PROGRAM, gpu_agent, gpu_plan
from tests.native_builds import FLAVOURS, simulated_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNHURRIED = {"predictedJobTime": "1000s"}
"""Added to plans of jobs that are not to be contained, however busy the machine is."""
ALL = tuple(range(EXTENTS))
PLANS = {
    "resident": gpu_plan(EXTENTS, resident=ALL, ring=0) | UNHURRIED,
    "streamed": gpu_plan(EXTENTS, ring=4) | UNHURRIED,
    "some resident": gpu_plan(EXTENTS, ring=3, resident=(0, 3, 4, 9)) | UNHURRIED,
}
SHORT = {
    "resident": gpu_plan(2, resident=(0, 1), ring=0),
    "streamed": gpu_plan(4, ring=2),
}
KEEPING, LOSING = "RingKeeping", "LayerPreemptive"


def terms(scheduling: str) -> dict[str, Any]:
    return {
        "scheduling": scheduling,
        "layer_ns": 10**12,
        "penalty_ns": 10**9,
        "parked_bytes": 4096,
    }


def register(agent: AgentProcess, plan: str, short: str, scheduling: str = KEEPING) -> None:
    agent.register(
        "vision", PLANS[plan], deadline_ns=10**13, period_ns=10**13, preemption=terms(scheduling)
    )
    agent.register("short", SHORT[short])


@contextmanager
def preempting(agent: AgentProcess, short: str) -> Iterator[list[str]]:
    """A short task that wants the device all the time, with earlier deadlines; its digests."""
    program = agent.program("short", 2, int(SHORT[short]["extentCount"]), GPU_PROGRAM)
    digests: list[str] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            digests.append(program.do("job"))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield digests
    finally:
        over.set()
        thread.join()
    assert set(digests) == {program.expected}


@pytest.mark.parametrize("scheduling", [KEEPING, LOSING])
@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_jobs_are_preempted_and_read_the_same(
    agent: AgentProcess, program: str, plan: str, short: str, scheduling: str
) -> None:
    def often() -> bool:
        """While the short task's program stands still, nothing of the other one is preempted."""
        assert Task(agent, "plain", program, "preempted").held() == ""
        return bool(left(agent, "vision")["preemptions"] > 30)

    register(agent, plan, short, scheduling)
    with preempting(agent, short):
        wait_until(often, "jobs were preempted often")
    seen = agent.task("vision")
    assert seen["revoked"] == seen["late_yields"] == seen["misses"] == 0


@pytest.mark.parametrize(("program", "name"), BY_THEMSELVES)
def test_scenario_while_preempted(agent: AgentProcess, program: str, name: str) -> None:
    register(agent, "some resident", "streamed")
    with preempting(agent, "streamed"):
        assert Task(agent, "plain", program, name).held() == ""


@pytest.mark.parametrize("flavour", [flavour for flavour in FLAVOURS if flavour != "plain"])
@pytest.mark.parametrize(
    ("program", "name"),
    [("gpu_task", "preempted"), ("gpu_task", "threads"), ("gpu_graphs", "preempted")],
)
def test_scenario_while_preempted_under_sanitizers(
    agent: AgentProcess, program: str, name: str, flavour: str
) -> None:
    def is_preempted() -> bool:
        """On a busy machine the few jobs of one run may all end undisturbed."""
        Task(agent, flavour, program, name).held()
        return bool(left(agent, "vision")["preemptions"])

    register(agent, "some resident", "streamed")
    with preempting(agent, "streamed"):
        wait_until(is_preempted, "a job was preempted")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("plan", ["resident", "streamed"])
def test_a_job_stands_while_the_agent_is_killed_and_goes_on_under_the_next(
    program: str, plan: str, tmp_path: Path
) -> None:
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, fast_extents=40) as agent:
        register(agent, plan, "resident")
        short = agent.program("short", 2, 2, GPU_PROGRAM)
        task = Task(agent, "plain", program, "agent_killed")
        for _ in range(2):
            task.wait_for("streaming")
            assert short.do("half") == "half"
            assert agent.snapshot()["devices"][0]["parked_bytes"] == 4096
            agent.kill()
            agent.start()
            task.go_on()
            assert short.do("reattach") == "back"
            assert short.do("rest") == short.expected
            task.wait_for("between")
            task.go_on()
        task.held()
        assert agent.task("vision")["revoked"] == 0


def test_a_client_killed_while_it_stands_leaves_nothing(agent: AgentProcess) -> None:
    register(agent, "streamed", "resident")
    short = agent.program("short", 2, 2, GPU_PROGRAM)
    task = Task(agent, "plain", "gpu_graphs", "agent_killed")
    task.wait_for("streaming")
    assert short.do("half") == "half"
    task.process.kill()
    task.process.communicate()
    wait_until(lambda: not agent.task("vision")["clients"], "the standing one is gone")
    assert agent.snapshot()["devices"][0]["parked_bytes"] == 0
    assert short.do("rest") == short.expected
    assert short.do("job") == short.expected
    assert agent.task("vision")["broken"] == 1
