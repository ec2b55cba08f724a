"""The HTTP endpoint, for whoever reaches its port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from tests.integration.agent.agent_process import wait_until

from tierline_agent.telemetry.endpoint import MOST, Endpoint
from tierline_agent.telemetry.health import Health

MADE_IN_S = 0.002


class Moment:
    """A metric that takes time, and says when it was made."""

    def __init__(self) -> None:
        self.took_s: list[float] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        began_s = time.monotonic()
        while time.monotonic() < began_s + MADE_IN_S:
            pass
        yield GaugeMetricFamily("moment", "When it was made.", value=began_s)
        self.took_s.append(time.monotonic() - began_s)


@pytest.fixture
def moment() -> Moment:
    return Moment()


@pytest.fixture
def endpoint(moment: Moment) -> Iterator[Endpoint]:
    registry = CollectorRegistry()
    registry.register(moment)
    moment.took_s.clear()  # it is collected once to learn its name
    endpoint = Endpoint(registry, Health(), "127.0.0.1", 0)
    yield endpoint
    endpoint.close()


def asked(endpoint: Endpoint, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_connections_that_ask_nothing_keep_nobody_from_an_answer(endpoint: Endpoint) -> None:
    threads = threading.active_count()
    with ExitStack() as closing:
        silent = []
        for _ in range(5 * MOST):
            connection = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
            silent.append(closing.enter_context(connection))
        assert asked(endpoint, "/healthz") == "ok\n"
        for connection in silent[: 4 * MOST]:
            assert connection.recv(1) == b"", "the oldest have ended"
        few = threads + MOST + 1
        wait_until(lambda: threading.active_count() <= few, "those of the oldest have ended")
        assert asked(endpoint, "/healthz") == "ok\n"


def test_metrics_are_new_and_made_in_a_tenth_of_the_time(
    endpoint: Endpoint, moment: Moment
) -> None:
    late: list[float] = []

    def scrape() -> None:
        for _ in range(5):
            asked_s = time.monotonic()
            lines = asked(endpoint, "/metrics").splitlines()
            (made,) = [float(one.split()[1]) for one in lines if one.startswith("moment ")]
            late.append(made - asked_s)

    began_s = time.monotonic()
    scrapers = [threading.Thread(target=scrape) for _ in range(6)]
    for one in scrapers:
        one.start()
    for one in scrapers:
        one.join()
    took_s = time.monotonic() - began_s
    assert len(late) == 30
    assert min(late) > 0, "none is of before it was asked for"
    assert sum(moment.took_s[:-1]) * 9 <= took_s
