"""An agent that starts again with another size for its tier in memory, while programs run."""

from __future__ import annotations

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan

pytestmark = pytest.mark.slow
MIB = 1 << 20


def resize(agent: AgentProcess, size_bytes: int) -> tuple[int, list[str]]:
    """Restart it with that size; returns the tier's size as it is then, and what it notes."""
    agent.restart_with(tiers=[{"name": "dram", "path": str(agent.store), "size_bytes": size_bytes}])
    said = agent.call("node")
    (tier,) = said["node"]["status"]["tiers"]
    return tier["capacityBytes"], said["notes"]


def test_programs_stream_on_from_a_tier_of_another_size(agent: AgentProcess) -> None:
    agent.register("vision", plan(10, resident=(0, 6)))
    vision = agent.program("vision", 1, 10)
    before, _ = resize(agent, 8 * MIB)
    larger, notes = resize(agent, 12 * MIB)
    assert (larger > before, notes) == (True, [])
    assert vision.do("job") == vision.expected
    smaller, notes = resize(agent, 4 * MIB)
    assert (smaller < before, notes) == (True, [])
    assert vision.do("job") == vision.expected

    kept, notes = resize(agent, MIB // 2)
    assert kept == smaller
    assert notes == [
        f"the dram tier {agent.store} keeps its {4 * MIB} bytes instead of {MIB // 2}: tasks of "
        "this node may need 10 extents of it, and 6 would fit; end tasks, then restart the agent"
    ]
    assert vision.do("job") == vision.expected
