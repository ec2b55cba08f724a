"""The agent's GPU on the simulated driver: a client in another process reads what it loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import EXTENT_BYTES, GPU_PROGRAM, gpu_agent, gpu_plan
from tests.native_builds import simulated_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def agent_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("gpu-agent")
    tiers = ("dram", "pmem", "nvme")
    with simulated_machine() as machine, gpu_agent(folder, machine, tiers=tiers) as process:
        yield process


@pytest.fixture
def agent(agent_of_module: AgentProcess) -> Iterator[AgentProcess]:
    """An agent without tasks that served other tests before."""
    yield agent_of_module
    agent_of_module.forget_tasks()


@pytest.mark.parametrize(
    "homes",
    [
        (("dram", 12),),
        (("pmem", 12),),
        (("nvme", 12),),
        (("dram", 5), ("nvme", 4), ("pmem", 3)),
        (("dram", 1), ("pmem", 1), ("nvme", 1)) * 4,
    ],
    ids=["dram", "pmem", "nvme", "all three", "in turns"],
)
@pytest.mark.parametrize("resident", [(), (0, 5)], ids=["all streamed", "two resident"])
def test_jobs_read_what_was_loaded(
    agent: AgentProcess, homes: tuple[tuple[str, int], ...], resident: tuple[int, ...]
) -> None:
    agent.register("vision", gpu_plan(12, ring=3, homes=homes, resident=resident))
    vision = agent.program("vision", 1, 12, GPU_PROGRAM)
    for _ in range(4):
        assert vision.do("job") == vision.expected
    seen = agent.task("vision")
    assert seen["jobs"] == 4
    assert seen["revoked"] == 0
    streamed = 12 - len(resident)
    assert seen["streamed_bytes"] == 4 * ((streamed - 1) * EXTENT_BYTES + 100)


def test_two_tasks_take_turns_in_one_ring(agent: AgentProcess) -> None:
    agent.register("vision", gpu_plan(9, ring=2, resident=(4,)))
    agent.register("speech", gpu_plan(7, ring=4, homes=(("pmem", 7),)))
    vision = agent.program("vision", 1, 9, GPU_PROGRAM)
    speech = agent.program("speech", 2, 7, GPU_PROGRAM)
    for _ in range(3):
        vision.tell("job")
        speech.tell("job")
        assert vision.answer() == vision.expected
        assert speech.answer() == speech.expected
    assert agent.extents() == {"free": 0, "resident": 1, "ring": 4, "workspace": 0, "draining": 0}


def test_a_generation_reads_its_arena_once_a_token(agent: AgentProcess) -> None:
    agent.register("writer", gpu_plan(8, ring=3, resident=(1,)))
    writer = agent.program("writer", 3, 8, GPU_PROGRAM)
    assert writer.do("passes 5") == writer.expected
    assert writer.do("job") == writer.expected
    seen = agent.task("writer")
    assert seen["jobs"] == 2
    assert seen["streamed_bytes"] == 6 * (6 * EXTENT_BYTES + 100)
