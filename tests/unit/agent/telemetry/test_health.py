from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from tierline_agent.telemetry.endpoint import Endpoint
from tierline_agent.telemetry.health import STUCK_S, Health
from tierline_agent.telemetry.metrics import Metrics


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


@pytest.fixture
def endpoint(metrics: Metrics, health: Health) -> Iterator[Endpoint]:
    serving = Endpoint(metrics.registry, health, "127.0.0.1", 0)
    yield serving
    serving.close()


def get(endpoint: Endpoint, path: str) -> tuple[int, str]:
    address = f"http://127.0.0.1:{endpoint.port}{path}"
    try:
        with urllib.request.urlopen(address, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_agent_that_turns_lives_and_is_ready(endpoint: Endpoint) -> None:
    assert get(endpoint, "/healthz") == (200, "ok\n")
    assert get(endpoint, "/readyz") == (200, "ok\n")
    assert get(endpoint, "/") == (404, "there are /metrics, /healthz and /readyz\n")
    assert 'tierline_agent_info{version="1.2.3"} 1.0' in get(endpoint, "/metrics?name=all")[1]


def test_what_is_not_ready_is_told(endpoint: Endpoint, health: Health) -> None:
    health.set("devices", "none can be used")
    health.set("kubelet", "not registered yet")
    assert get(endpoint, "/readyz") == (
        503,
        "devices: none can be used\nkubelet: not registered yet\n",
    )
    assert get(endpoint, "/healthz")[0] == 200
    health.set("devices", "")
    health.set("kubelet", "")
    assert get(endpoint, "/readyz")[0] == 200


def test_a_loop_that_hangs(endpoint: Endpoint, health: Health, clock: Clock) -> None:
    clock.now_s = STUCK_S + 1
    assert get(endpoint, "/healthz") == (503, "the event loop has not turned for 61 s\n")
    assert get(endpoint, "/readyz")[0] == 503
    health.turned()
    assert get(endpoint, "/healthz")[0] == 200


def test_a_task_that_is_gone_leaves_no_series(metrics: Metrics) -> None:
    def series() -> set[str]:
        return {
            sample.name
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.labels.get("task") == "vit"
        }

    task = metrics.of(("perception", "vit"))
    for criticality in ("Hard", "BestEffort"):
        task.describe(
            {("cpu", criticality)},
            ready=True,
            trains=False,
            period_s=1,
            deadline_s=1,
            job_s=0.1,
            response_s=0.2,
        )
    task.set_tier_bytes({"dram": 1})
    assert {"tierline_task_info", "tierline_jobs_total", "tierline_task_tier_bytes"} <= series()
    of_task = {"domain": "perception", "task": "vit", "device": "cpu"}
    value = metrics.registry.get_sample_value
    assert value("tierline_task_info", {**of_task, "criticality": "Hard"}) is None
    assert value("tierline_task_info", {**of_task, "criticality": "BestEffort"}) == 1

    metrics.keep({("perception", "other")})

    assert not series()
