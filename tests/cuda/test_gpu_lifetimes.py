"""Arenas and contexts of a simulated GPU that come and go: a C program with the library preloaded.

The program checks every byte that its kernels read (gpu_kit.h). What makes memory or gives it back
may wait for the GPU, and the GPU may stand at a gate until the agent gives it back.
"""

from __future__ import annotations

import pytest
from tests.cuda.programs import left
from tests.cuda.tasks import PLANS, Task
from tests.cuda.test_gpu_preemption import preempting, register
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.native_builds import FLAVOURS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", ["freed_between_jobs", "refused_between_jobs"])
def test_an_arena_goes_while_a_job_of_another_one_is_preempted(
    agent: AgentProcess, name: str, flavour: str
) -> None:
    def is_preempted() -> bool:
        """While the short task's program stands still, nothing of the other one is."""
        Task(agent, flavour, "gpu_lifetimes", name).held()
        return bool(left(agent, "vision")["preemptions"])

    register(agent, "streamed", "streamed")
    with preempting(agent, "streamed"):
        wait_until(is_preempted, "a job was preempted")
    seen = agent.task("vision")
    assert seen["revoked"] == seen["late_yields"] == 0


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", ["reset", "reset_inside", "reset_below", "capture_dropped"])
def test_a_context_ends(agent: AgentProcess, name: str, flavour: str) -> None:
    agent.register("vision", PLANS["all streamed"])
    Task(agent, flavour, "gpu_lifetimes", name).held()
