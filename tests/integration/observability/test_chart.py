"""What the chart makes of dashboards, alerts and monitors, and that their CRDs take it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import SYSTEM, objects, rendered
from tests.integration.conftest import install_crds
from tests.integration.observability.expressions import RULES, dashboards

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.slow
CRDS = Path(__file__).with_name("crds")
COREOS = "monitoring.coreos.com/v1"


@pytest.fixture
def everything(tmp_path: Path) -> list[Manifest]:
    """The chart's objects with all monitoring enabled."""
    chosen = {"labels": {"release": "prometheus"}, "enabled": True}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"monitoring": {"monitors": chosen, "rules": chosen}}))
    return list(objects(values))


def of_kind(manifests: list[Manifest], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def test_each_dashboard_is_a_config_map_for_grafanas_sidecar(everything: list[Manifest]) -> None:
    made = {
        name: json.loads(text)
        for found in of_kind(everything, "ConfigMap")
        if found["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in found["data"].items()
    }
    assert made == {f"tierline-{name}.json": content for name, content in dashboards().items()}


def test_nothing_needs_the_prometheus_operator_unless_it_is_asked_for() -> None:
    assert COREOS not in rendered()


def test_the_prometheus_operators_kinds_are_taken_as_they_are(
    everything: list[Manifest], api_server: ControlPlane
) -> None:
    api = api_server.api
    install_crds(api_server, CRDS)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    taken = [manifest for manifest in everything if manifest["apiVersion"] == COREOS]
    assert {found["kind"] for found in taken} == {
        "PodMonitor",
        "PrometheusRule",
        "ServiceMonitor",
    }
    for manifest in taken:
        stored = api.apply(manifest, dryRun="All")
        assert stored["metadata"]["labels"]["release"] == "prometheus"
    (rule,) = of_kind(taken, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_monitors_find_the_ports_that_pods_name(everything: list[Manifest]) -> None:
    (agents,) = of_kind(everything, "PodMonitor")
    (operators,) = of_kind(everything, "ServiceMonitor")
    (service,) = of_kind(everything, "Service")
    (daemon_set,) = of_kind(everything, "DaemonSet")
    (deployment,) = of_kind(everything, "Deployment")

    def chosen(selector: dict[str, str], labelled: dict[str, Any]) -> bool:
        return selector.items() <= labelled["metadata"]["labels"].items()

    for owner, selector in (
        (daemon_set, agents["spec"]["selector"]["matchLabels"]),
        (deployment, service["spec"]["selector"]),
    ):
        pod = owner["spec"]["template"]
        assert chosen(selector, pod)
        (container,) = pod["spec"]["containers"]
        assert "metrics" in {port["name"] for port in container["ports"]}
    assert chosen(operators["spec"]["selector"]["matchLabels"], service)
    for monitor in (agents["spec"]["podMetricsEndpoints"], operators["spec"]["endpoints"]):
        (endpoint,) = monitor
        assert endpoint["port"] == "metrics"
