"""What the dashboards and alerts ask for is what agent and operator name."""

from __future__ import annotations

import pytest
from tests.integration.observability.expressions import (
    dashboards,
    panel_expressions,
    panels,
    rules,
    selectors,
)

from tierline_observability.metrics_page import agent_names, operator_names

TARGET_LABELS = {"job", "instance", "node"}
OTHERS = {"up", "process_resident_memory_bytes"}


def known() -> dict[str, set[str]]:
    """The names of series, and by which labels they can be chosen."""
    found = {name: set(TARGET_LABELS) for name in OTHERS}
    for name, metric in {**agent_names(), **operator_names()}.items():
        labels = {*metric._labelnames, *TARGET_LABELS}
        if metric._type == "histogram":
            found[f"{name}_bucket"] = {*labels, "le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = labels
        else:
            found[name] = labels
    return found


EXPRESSIONS = {**panel_expressions(), **{name: rule["expr"] for name, rule in rules().items()}}


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_an_expression_reads_series_that_there_are(place: str) -> None:
    read = selectors(EXPRESSIONS[place])
    assert read
    series = known()
    for name, labels in read:
        assert name in series, f"{name} is no metric"
        assert labels <= series[name], f"{name} has no label {labels - series[name]}"


def test_every_metric_of_its_own_is_documented_by_prometheus_conventions() -> None:
    for name, metric in {**agent_names(), **operator_names()}.items():
        assert metric._documentation.endswith("."), name
        assert (metric._type == "counter") == name.endswith("_total"), name
        if metric._type == "histogram":
            assert name.endswith(("_seconds", "_ratio")), name


@pytest.mark.parametrize("name", ["fleet", "links", "nodes", "tasks"])
def test_a_dashboard_fits_grafana(name: str) -> None:
    dashboard = dashboards()[name]
    assert dashboard["uid"] == f"tierline-{name}"
    assert dashboard["schemaVersion"] >= 41
    source, *choices = dashboard["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    asked = " ".join(t["expr"] for p in panels(dashboard) for t in p["targets"])
    for choice in choices:
        assert f"${choice['name']}" in asked, f"{choice['name']} chooses nothing"
    for panel in panels(dashboard):
        assert panel["description"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        places = panel["gridPos"]
        assert places["x"] + places["w"] <= 24
