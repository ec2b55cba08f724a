"""An agent that starts again with another size for its tier, while programs run."""

from __future__ import annotations

import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan

pytestmark = pytest.mark.slow
MIB = 1 << 20
MEMORY = "/dev/shm"  # noqa: S108 - a tmpfs


def settings(tier: str, folder: Path, size_bytes: int) -> dict[str, Any]:
    return {"tiers": [{"name": tier, "path": str(folder / tier), "size_bytes": size_bytes}]}


def resize(agent: AgentProcess, **settings: Any) -> tuple[int, list[str]]:
    """Restart it with that tier; returns the tier's size as it is then, and what it notes."""
    agent.restart_with(**settings)
    said = agent.call("node")
    (tier,) = said["node"]["status"]["tiers"]
    return tier["capacityBytes"], said["notes"]


@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_programs_stream_on_from_a_tier_of_another_size(tier: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if tier == "dram" else tmp_path) as folder:
        of = partial(settings, tier, Path(folder))
        agent = AgentProcess(tmp_path, **of(8 * MIB))
        agent.start()
        try:
            status = agent.call("node")["node"]["status"]
            lasts = {"dram": "Agent", "nvme": "PowerLoss"}
            assert [one["durability"] for one in status["tiers"]] == [lasts[tier]]
            assert status["agentVersion"] == version("tierline")
            agent.register("vision", plan(10, resident=(0, 6), homes=((tier, 10),)))
            vision = agent.program("vision", 1, 10)
            before, _ = resize(agent, **of(8 * MIB))
            larger, notes = resize(agent, **of(12 * MIB))
            assert (larger > before, notes) == (True, [])
            assert vision.do("job") == vision.expected
            smaller, notes = resize(agent, **of(4 * MIB))
            assert (smaller < before, notes) == (True, [])
            assert vision.do("job") == vision.expected

            kept, notes = resize(agent, **of(MIB // 2))
            assert kept == smaller
            assert notes == [
                f"the {tier} tier {folder}/{tier} keeps its {4 * MIB} bytes instead of "
                f"{MIB // 2}: tasks of this node may need 10 extents of it, and 6 would fit; "
                "end tasks, then restart the agent"
            ]
            assert vision.do("job") == vision.expected
        finally:
            agent.stop()
