"""A real Prometheus scrapes a real agent with running jobs, and a real operator: nothing that a
dashboard or an alert asks for is empty, in health.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.chart.helm import SYSTEM, rights
from tests.integration.agent.agent_process import AgentProcess, TaskProcess, plan
from tests.integration.observability.expressions import RULES, panel_expressions, watched
from tests.integration.observability.prometheus import Prometheus
from tests.integration.operator.running import ALONE, Nursery, Operator, User, until
from tests.unit.placement.fleets import node, profile, quota, task

from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import free_port
from tierline_observability.metrics_page import agent_names, operator_names

pytestmark = pytest.mark.slow
PATIENCE_S = 120


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    # A folder of its own, with a short name: a socket's path has room for 107 bytes.
    process = AgentProcess(tmp_path_factory.mktemp("agent"), metrics_port=0)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def program(agent: AgentProcess) -> TaskProcess:
    """A task's program that has loaded its weights; in addition a Soft task without a program."""
    registered = agent.register("vit", plan(9, resident=(2,)), domain="vision")
    assert registered["ok"], registered
    registered = agent.register("captions", plan(2), domain="vision", criticality="Soft")
    assert registered["ok"], registered
    registered = agent.register(
        "tuner", plan(0, ring=0), domain="vision", criticality="BestEffort", training=True
    )
    assert registered["ok"], registered
    return agent.program("vit", 1, 9)


@pytest.fixture
def operator_port(api_server: ControlPlane, tmp_path: Path) -> Iterator[int]:
    """Where a running operator that leads serves its metrics."""
    api_server.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    for manifest in rights("operator"):
        api_server.api.apply(manifest)
    port = free_port()
    with ExitStack() as undo:
        nursery = Nursery()
        undo.callback(nursery.close)
        settings = {**ALONE, "METRICS_PORT": str(port)}
        operator = Operator(api_server, nursery, tmp_path, "seen", settings)
        undo.callback(operator.stop)
        operator.start()
        until("the operator leads", operator.leads, PATIENCE_S)
        yield port


@pytest.fixture
def prometheus(agent: AgentProcess, operator_port: int, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that sees both as the chart's monitors present them."""
    targets = [
        {
            "job_name": "tierline-agent",
            "static_configs": [
                {
                    "targets": [urlsplit(agent.metrics_address()).netloc],
                    "labels": {"node": "node-a"},
                }
            ],
        },
        {
            "job_name": "tierline-operator",
            "static_configs": [{"targets": [f"127.0.0.1:{operator_port}"]}],
        },
    ]
    started = Prometheus(tmp_path, targets, RULES)
    try:
        until("Prometheus answers", started.ready, PATIENCE_S)
        yield started
    finally:
        started.stop()


def test_every_panel_and_every_alert_has_data(
    prometheus: Prometheus, program: TaskProcess, api_server: ControlPlane
) -> None:
    until(
        "both were scraped",
        lambda: prometheus.query("sum(tierline_operator_leader) * sum(tierline_clients)") == [1],
        PATIENCE_S,
    )
    user = User(api_server, api_server.namespace())
    published = node("node-a")
    for other in user.api.list("tierline.io/v1alpha1", "MemNode"):  # of tests before
        named = {**published.to_api(), "metadata": {"name": other["metadata"]["name"]}}
        user.api.delete(named)
    user.node(published)
    user.apply(quota("limit", fast_mib=1 << 16))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.apply(task("too-much", of="m", period_ms=11))
    user.wait_task("m", "Admitted")
    user.wait_task("too-much", "DeadlineInfeasible")

    missing = {**panel_expressions(), **watched()}
    for name, metric in (agent_names() | operator_names()).items():
        missing[name] = f"{name}_count" if metric._type == "histogram" else name

    def all_have_data() -> bool:
        assert program.do("job") == program.expected
        for place, expression in list(missing.items()):
            if any(not math.isnan(value) for value in prometheus.query(expression)):
                del missing[place]
        return not missing

    try:
        until("everything has data", all_have_data, PATIENCE_S)
    except AssertionError:
        pytest.fail("\n".join(f"{place}: {text}" for place, text in missing.items()))
    until(
        "every rule was evaluated",
        lambda: all(rule["health"] != "unknown" for rule in prometheus.rules().values()),
        PATIENCE_S,
    )
    for name, rule in prometheus.rules().items():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), name
    for name in ("too-much", "m"):
        user.api.delete(user.task(name))
        user.api.wait_gone(user.task(name))
    user.api.delete(published.to_api())
