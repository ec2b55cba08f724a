"""What the agent of a node is not ready for, until the API server and the kubelet have answered."""

from __future__ import annotations

from pathlib import Path

from tests.unit.agent.loops import in_loop

from tierline_agent.config import AgentConfig, KubernetesSettings
from tierline_agent.kubernetes.readiness import object_at_first
from tierline_agent.kubernetes.service import Service
from tierline_agent.processes.lives import Lives
from tierline_agent.telemetry.health import Health


def config(folder: Path) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "state_dir": str(folder / "state"),
            "run_dir": str(folder / "run"),
            "device": {"kind": "cpu", "fast_bytes": 1 << 20, "extent_bytes": 1 << 16},
            "tiers": [{"name": "dram", "path": str(folder / "dram"), "size_bytes": 1 << 20}],
        }
    )


def test_it_is_not_ready_before_anybody_has_answered() -> None:
    health = Health()
    object_at_first(health.set)
    assert health.unready == (
        "kubernetes: the node's claims have not been read yet",
        "kubelet: not yet registered",
    )


@in_loop
async def test_the_kubelet_is_ready_when_it_has_registered_the_driver(tmp_path: Path) -> None:
    health = Health()
    service = Service(config(tmp_path), KubernetesSettings(), "n", Lives(tmp_path), health.set)
    await service.registered("no such version")
    assert list(health.unready) == ["kubelet: it refuses the driver: no such version"]
    await service.registered("")
    assert not health.unready
