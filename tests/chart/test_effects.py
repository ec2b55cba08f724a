"""Every value of the chart has an effect: it changes what Helm makes of the chart, by itself.

The values are those of values.schema.json, which refuses every other name. Some change only what
others ask for: GIVEN has these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from tests.chart.helm import CHART, templated

_SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
_POOL: Final = "agent.pools.default"
_GPUS: Final = {"count": 1, "fastMemory": "70Gi", "driverDir": "/opt/nvidia"}
_SHA: Final = f"sha256:{'0123456789abcdef' * 4}"
_LABELS: Final = {"team": "platform"}
_PODS: Final[dict[str, Any]] = {
    "image.repository": "registry.example.com/other",
    "image.tag": "1.2",
    "image.digest": _SHA,
    "image.pullPolicy": "Always",
    "resources.requests": {"cpu": "2"},
    "resources.limits": {"memory": "9Gi"},
    "podLabels": _LABELS,
    "podAnnotations": _LABELS,
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "priorityClassName": "mine",
}
VALUES: Final[dict[str, Any]] = {
    "imagePullSecrets": [{"name": "registry"}],
    **{f"{part}.{name}": value for part in ("operator", "agent") for name, value in _PODS.items()},
    "operator.replicas": 3,
    "operator.logLevel": "debug",
    "operator.logFormat": "text",
    "operator.margins.cpu": 1.5,
    "operator.margins.cuda": 1.5,
    "operator.headroom": 0.25,
    "operator.measuringLimitSeconds": 60,
    "operator.keepFreeSeconds": 60,
    "operator.stalledAfterSeconds": 60,
    "operator.nodeSelector": _LABELS,
    "operator.tolerations": [{"operator": "Exists"}],
    "operator.affinity": {"podAffinity": {}},
    "agent.kubeletDir": "/var/lib/k0s/kubelet",
    "agent.cdiDir": "/etc/cdi",
    "agent.maxUnavailable": "10%",
    "agent.reconnectSeconds": 300,
    "agent.handOver": True,
    f"{_POOL}.nodeSelector": _LABELS,
    f"{_POOL}.tolerations": [{"operator": "Exists"}],
    f"{_POOL}.devices.cpu.fastMemory": "2Gi",
    f"{_POOL}.devices.gpus.count": 2,
    f"{_POOL}.devices.gpus.fastMemory": "60Gi",
    f"{_POOL}.devices.gpus.runtimeClassName": "nvidia",
    f"{_POOL}.devices.gpus.driverDir": "/usr/local/nvidia/lib64",
    f"{_POOL}.extentSize": "8Mi",
    f"{_POOL}.jobLimitSeconds": 60,
    f"{_POOL}.tiers.dram.path": "/run/tierline/dram",
    f"{_POOL}.tiers.dram.size": "3Gi",
    f"{_POOL}.tiers.pmem.path": "/dev/dax1.0",
    f"{_POOL}.tiers.pmem.size": "3Gi",
    f"{_POOL}.tiers.nvme.path": "/mnt/nvme0/tierline",
    f"{_POOL}.tiers.nvme.size": "5Gi",
    "rootPods": "deny",
    "crds.keep": False,
    "networkPolicy.enabled": False,
    "networkPolicy.apiServerPorts": [8443],
    "networkPolicy.metricsFrom": [{"podSelector": {"matchLabels": _LABELS}}],
    "monitoring.dashboards.enabled": False,
    "monitoring.dashboards.labels": _LABELS,
    "monitoring.dashboards.annotations": _LABELS,
    "monitoring.monitors.enabled": True,
    "monitoring.monitors.labels": _LABELS,
    "monitoring.monitors.interval": "7s",
    "monitoring.rules.enabled": True,
    "monitoring.rules.labels": _LABELS,
    "monitoring.rules.runbookUrl": "https://example.com/runbooks",
}
GIVEN: Final[dict[str, dict[str, Any]]] = {
    f"{_POOL}.devices.gpus": {f"{_POOL}.devices.cpu": None, f"{_POOL}.devices.gpus": _GPUS},
    f"{_POOL}.tiers.pmem": {f"{_POOL}.tiers.pmem": {"path": "/mnt/pmem0/store", "size": "2Gi"}},
    "monitoring.monitors.": {"monitoring.monitors.enabled": True},
    "monitoring.rules.": {"monitoring.rules.enabled": True},
}
"""What must be there for values with such prefixes to matter."""
NOT_READ: Final = {"global"}
"""Helm's own."""


def _leaves(schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = _SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    named = dict(schema.get("properties", {}))
    if before == "agent.pools":
        named = {"default": schema["additionalProperties"]}
    if not named or schema.get("type") == "array":
        yield before
        return
    for name, one in named.items():
        yield from _leaves(one, f"{before}.{name}" if before else name)


def _nested(edits: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {}
    for path, value in edits.items():
        *way, last = path.split(".")
        at = values
        for part in way:
            at = at.setdefault(part, {})
        at[last] = dict(value) if isinstance(value, dict) else value
    return yaml.safe_dump(values)


def test_every_value_is_shown_to_have_an_effect() -> None:
    """Whoever adds a value shows here what it changes."""
    assert set(_leaves(_SCHEMA)) == set(VALUES) | NOT_READ


def test_each_value_alone_changes_what_is_installed(tmp_path: Path) -> None:
    @cache
    def made(values: str) -> str:
        path = tmp_path / f"{abs(hash(values))}.yaml"
        path.write_text(values)
        done = templated("--values", path)
        assert done.returncode == 0, f"{values}{done.stderr}"
        return done.stdout

    def without_effect(name: str) -> str | None:
        given = next((GIVEN[one] for one in GIVEN if name.startswith(one)), {})
        given = {path: value for path, value in given.items() if path != name}
        with_it = _nested({**given, name: VALUES[name]})
        return name if made(_nested(given)) == made(with_it) else None

    with ThreadPoolExecutor(2) as threads:
        unread = [name for name in threads.map(without_effect, VALUES) if name]
    assert not unread, "these change nothing"
