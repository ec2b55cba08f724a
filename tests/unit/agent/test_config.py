from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tierline_agent.config import load_config, parse_config
from tierline_agent.errors import ConfigError

DRAM = {"name": "dram", "path": "/dev/shm/x", "size_bytes": 1 << 24}  # noqa: S108 - never opened


def settings(**changes: Any) -> str:
    values: dict[str, Any] = {
        "state_dir": "/s",
        "run_dir": "/r",
        "device": {"kind": "cpu", "fast_bytes": 1 << 26},
        "tiers": [DRAM],
        "metrics_port": None,
    }
    return json.dumps({**values, **changes})


def test_the_defaults() -> None:
    config = parse_config(settings(), "test")
    assert config.extent_bytes == 4 << 20
    assert config.limits.clients_per_task == 8


def test_a_gpu_has_larger_extents() -> None:
    device = {"kind": "cuda", "uuid": "GPU-1", "fast_bytes": 1 << 30}
    tiers = [{**DRAM, "size_bytes": 1 << 30}]
    config = parse_config(settings(device=device, tiers=tiers), "test")
    assert config.extent_bytes == 32 << 20


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"device": {"index": 1, "fast_bytes": 1 << 26}}, "kind is cpu"),
        (
            {"device": {"kind": "cuda", "index": 1, "uuid": "GPU-1", "fast_bytes": 1 << 26}},
            "give one",
        ),
        ({"surprise": 1}, "surprise: there is no such field; write one of "),
        ({"metrics_port": "x"}, "metrics_port: 'x' is not valid; write a whole number"),
        ({"metrics_port": 70000}, "metrics_port: 70000 is not valid; it must be less than"),
        ({"device": {"fast_bytes": 1 << 26, "colour": 1}}, "device.colour"),
        ({"device": {"fast_bytes": "64Mi"}}, "device.fast_bytes"),
        ({"device": {"fast_bytes": 1 << 26, "extent_bytes": 3 << 20}}, "extent_bytes"),
        ({"device": {"fast_bytes": 1 << 20}}, "fast_bytes 1048576"),
        ({"device": {"kind": "tpu", "fast_bytes": 1 << 26}}, "device.kind"),
        ({"tiers": []}, "tiers"),
        ({"tiers": [DRAM, DRAM]}, "two tiers have the name 'dram'"),
        ({"tiers": [DRAM, {**DRAM, "name": "nvme"}]}, "two tiers have the path"),
        ({"tiers": [{**DRAM, "size_bytes": 1}]}, "dram has size_bytes 1"),
        ({"metrics_port": 70000}, "metrics_port"),
        ({"limits": {"clients": 0}}, "limits.clients"),
        ({"state_dir": ""}, "state_dir"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=r"test: ") as raised:
        parse_config(settings(**changes), "test")
    assert field in str(raised.value)


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse_config("{", "test")
    for text in ("[1, 2]", "null", "3"):
        with pytest.raises(ConfigError, match="in test: they are no JSON object; write one with"):
            parse_config(text, "test")
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "missing")


def test_on_kubernetes_the_pods_have_the_tasks_folders() -> None:
    assert parse_config(settings(), "x").tasks_dir == Path("/r/tasks")
    cluster = parse_config(settings(kubernetes={}), "x")
    assert cluster.tasks_dir == Path("/var/lib/tierline/pods")

    wrong = settings(kubernetes={"report_period_s": 0, "node": "a"})
    with pytest.raises(ConfigError, match=r"kubernetes\.node: there is no such field"):
        parse_config(wrong, "x")
