"""Tasks on a simulated GPU, streamed by the real agent: C programs with the library preloaded.

The programs check every byte that their kernels read (gpu_kit.h); here are the plans under which
they run, and what befalls the agent meanwhile.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from tests.cuda.programs import left
from tests.cuda.schedules import kill_agent
from tests.cuda.tasks import BY_THEMSELVES, PLANS, PROGRAMS, UNSEEN, Task
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.integration.agent.gpu_agent import GPU_PROGRAM, gpu_agent, gpu_plan
from tests.native_builds import FLAVOURS, simulated_machine

READERS = 30
GRANULE = 2 << 20
"""The GPU's memory is given in such pieces, bytes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("program", "name"), BY_THEMSELVES)
def test_scenario(agent: AgentProcess, program: str, name: str, plan: str) -> None:
    agent.register("vision", PLANS[plan])
    assert Task(agent, "plain", program, name).held() == ""


@pytest.mark.parametrize("flavour", [flavour for flavour in FLAVOURS if flavour != "plain"])
@pytest.mark.parametrize(("program", "name"), BY_THEMSELVES)
def test_scenario_under_sanitizers(
    agent: AgentProcess, program: str, name: str, flavour: str
) -> None:
    agent.register("vision", PLANS["some resident"])
    Task(agent, flavour, program, name).held()


def test_a_call_that_begins_the_stream_again_waits_for_all_that_it_reads(tmp_path: Path) -> None:
    """It may drop copies that it would have read; on a slow link these extents come late."""
    slow = {"H2D": "200Mi"}
    with (
        simulated_machine() as machine,
        gpu_agent(tmp_path, machine, fast_extents=40, gpu=slow) as agent,
    ):
        agent.register("vision", PLANS["all streamed"])
        Task(agent, "plain", "gpu_task", "random_order").held()


@pytest.mark.parametrize("name", ["reversed", "in_order", "passes"])
def test_the_agent_hears_of_another_order_than_was_learned(agent: AgentProcess, name: str) -> None:
    agent.register("vision", PLANS["all streamed"])
    Task(agent, "plain", "gpu_task", name).held()
    kinds = [notice["kind"] for notice in left(agent, "vision")["notices"]]
    assert kinds.count("order_changed") == (name == "reversed")


@pytest.mark.parametrize("plan", PLANS)
def test_a_task_whose_launches_come_in_another_order_says_so_once(
    agent: AgentProcess, plan: str
) -> None:
    agent.register("vision", PLANS[plan])
    assert Task(agent, "plain", "gpu_task", "in_order").held() == ""
    assert not agent.task("vision")["notices"]
    Task(agent, "plain", "gpu_task", "turned").held()
    (told,) = left(agent, "vision")["notices"]
    assert told["kind"] == "order_changed"
    shown = re.fullmatch(
        r"(\d+) of (\d+) launches read weights in another order than in the first jobs: a job's "
        r"stream begins again (\d+) times, and copies (\d+) MiB of (\d+)",
        told["text"],
    )
    assert shown is not None, told
    strays, calls, returns, copied, once = (int(one) for one in shown.groups())
    assert 0 < returns <= strays <= calls
    assert copied >= once


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", UNSEEN)
def test_a_reader_that_nobody_can_see_ends_the_first_job_that_has_it(
    agent: AgentProcess, name: str, plan: str
) -> None:
    agent.register("vision", PLANS[plan])
    said = Task(agent, "plain", "gpu_task", name).held()
    assert "found a weight's address by another way than its parameters" in said
    assert f"(the latest first): {UNSEEN[name]}" in said
    assert agent.task("vision")["reads_unseen"]


def test_readers_from_numbers_are_right_or_loud(agent: AgentProcess) -> None:
    """In the first job that launches them; `reader` checks the bytes."""
    loud = 0
    for number in range(READERS):
        agent.register("vision", PLANS[list(PLANS)[number % len(PLANS)]])
        late = {"SIMCUDA_LATE": str(number + 1), "SIMCUDA_CALLS_WAIT": str(number // 3 % 2)}
        said = Task(agent, "plain", "gpu_task", "reader", READER=str(number), **late).held()
        unseen = bool(agent.task("vision")["reads_unseen"])
        assert ("found a weight's address by another way" in said) == unseen, (number, said)
        loud += unseen
        agent.forget_tasks()
    assert 0 < loud < READERS, "each of both happens"


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_job_is_revoked(agent: AgentProcess, program: str, flavour: str) -> None:
    """The agent's copies fail once; the job ends with right bytes all the same."""
    agent.register("vision", PLANS["all streamed"])
    task = Task(agent, flavour, program, "revoked")
    task.wait_for("loaded")
    faults = Path(agent.environment["SIMCUDA_FAULT_FILE"])
    faults.write_text("call cuMemcpyHtoDAsync 6 INVALID_VALUE\n")
    try:
        task.go_on()
        task.held()
    finally:
        faults.write_text("")
    assert agent.task("vision")["revoked"] == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nobody_gets_the_ring_of_a_revoked_job_that_still_reads_it(
    tmp_path: Path, flavour: str
) -> None:
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, fast_extents=40) as agent:
        agent.register("vision", PLANS["all streamed"])
        agent.register("other", gpu_plan(9, ring=4))
        other = agent.program("other", 2, 9, GPU_PROGRAM)
        task = Task(agent, flavour, "gpu_task", "revoked_slow")
        task.wait_for("loaded")
        faults = Path(agent.environment["SIMCUDA_FAULT_FILE"])
        faults.write_text("call cuMemcpyHtoDAsync 6 INVALID_VALUE\n")
        task.go_on()
        task.wait_for("launched")
        other.tell("job")
        task.go_on()
        task.held()
        assert other.answer() == other.expected
        assert agent.task("vision")["revoked"] == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_job_is_revoked_while_it_is_begun(tmp_path: Path, flavour: str) -> None:
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, fast_extents=40) as agent:
        agent.register("vision", PLANS["all streamed"])
        agent.register("other", gpu_plan(9, ring=4))
        other = agent.program("other", 2, 9, GPU_PROGRAM)
        task = Task(agent, flavour, "gpu_task", "revoked_early")
        held = task.faults.with_name("held")
        held.touch()
        task.wait_for("copied")
        # It takes the ring: what was copied ahead of the job to come would leave no copy to fail.
        other.tell("job")
        assert other.answer() == other.expected
        task.faults.write_text(f"hold cuMemUnmap 1 {held}\n")
        faults = Path(agent.environment["SIMCUDA_FAULT_FILE"])
        faults.write_text("call cuMemcpyHtoDAsync 1+ INVALID_VALUE\n")
        task.go_on()
        try:
            wait_until(lambda: agent.task("vision")["revoked"], "the job is revoked")
        finally:
            faults.write_text("")
            held.unlink()
        task.held()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_agent_hears_what_cannot_be_swapped(agent: AgentProcess, flavour: str) -> None:
    agent.register("vision", PLANS["all streamed"])
    task = Task(agent, flavour, "gpu_task", "unswappable")

    def known(size_bytes: int) -> bool:
        return bool(agent.task("vision")["unswappable_bytes"] == size_bytes)

    for word, size_bytes in (("held", 6 << 20), ("held more", 10 << 20), ("freed", 0)):
        task.wait_for(word)
        wait_until(partial(known, size_bytes), f"{word}: {size_bytes} bytes are known")
        task.go_on()
    task.held()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_fast_memory_is_what_the_driver_shows(flavour: str, tmp_path: Path) -> None:
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, fast_extents=40) as agent:
        agent.register("vision", PLANS["all streamed"])
        task = Task(agent, flavour, "gpu_task", "held")
        ring_bytes = 4 * agent.snapshot()["extent_bytes"]
        first, later = 24 << 20, 4 << 20
        contexts = []
        for own_bytes in (first, 0, later, 0):
            assert task.process.stdout is not None
            shown_bytes = int(task.process.stdout.readline())
            wait_until(
                partial(_is_near, agent, "fast_used_bytes", ring_bytes + own_bytes),
                f"{own_bytes} bytes of the process are known",
            )
            contexts.append(shown_bytes - agent.snapshot()["fast_used_bytes"])
            task.go_on()
        task.held()
        # a weight's old memory counts apart, and what comes and goes in a moment counts
        assert _is_near(agent, "fast_peak_bytes", ring_bytes + later)
        assert _is_near(agent, "fast_start_peak_bytes", ring_bytes + first + (8 << 20))
    assert max(contexts) - min(contexts) < GRANULE  # nothing else is on the GPU, at any time


def _is_near(agent: AgentProcess, name: str, size_bytes: int) -> bool:
    return bool(abs(agent.snapshot()[name] - size_bytes) < GRANULE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_agent_is_killed_in_mid_job_and_between_jobs(program: str, tmp_path: Path) -> None:
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, fast_extents=40) as agent:
        agent.register("vision", PLANS["all streamed"])
        kill_agent(agent, Task(agent, "plain", program, "agent_killed"))
