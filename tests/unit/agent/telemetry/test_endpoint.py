"""The HTTP endpoint, for whoever reaches its port."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from tests.integration.agent.agent_process import wait_until

from tierline_agent.concurrency import faults
from tierline_agent.telemetry.endpoint import Endpoint
from tierline_agent.telemetry.health import Health
from tierline_agent.telemetry.listener import MOST

MADE_IN_S = 0.002


class Moment:
    """A metric that takes time, and says when it was made."""

    def __init__(self) -> None:
        self.fails = False
        self.took_s: list[float] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        began_s = time.monotonic()
        if self.fails:
            raise ZeroDivisionError
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


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough of them for more connections than the endpoint keeps."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * MOST), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connected(endpoint: Endpoint, peers: ExitStack, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
    peers.enter_context(made)
    made.sendall(said)
    return made


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nA: b"], ids=["silent", "slow"])
def test_connections_that_never_ask_keep_nobody_from_an_answer(
    endpoint: Endpoint, said: bytes
) -> None:
    with ExitStack() as peers:
        others = [connected(endpoint, peers, said) for _ in range(MOST + 100)]
        assert asked(endpoint, "/healthz") == "ok\n"
        for one in others[:100]:
            with suppress(ConnectionResetError):
                assert one.recv(1) == b"", "the oldest have ended"
        assert asked(endpoint, "/healthz") == "ok\n"


@pytest.mark.usefixtures("descriptors")
def test_who_never_reads_what_he_asked_for_keeps_nobody_either(endpoint: Endpoint) -> None:
    with ExitStack() as peers:
        for _ in range(MOST + 100):
            connected(endpoint, peers, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asked(endpoint, "/healthz") == "ok\n"
        assert "moment " in asked(endpoint, "/metrics")


@given(said=st.binary(max_size=200) | st.builds(bytes.__mul__, st.just(b"A: b\r\n"), st.just(4000)))
@settings(max_examples=25)
def test_whatever_is_said_is_answered_or_ends(said: bytes) -> None:
    with closing(Endpoint(CollectorRegistry(), Health(), "127.0.0.1", 0)) as endpoint:
        with ExitStack() as peers, suppress(ConnectionError):
            peer = connected(endpoint, peers, said)
            peer.shutdown(socket.SHUT_WR)
            got = b"".join(iter(lambda: peer.recv(1 << 16), b""))
            assert got == b"" or got.startswith(b"HTTP/1.1 ")
        assert asked(endpoint, "/healthz") == "ok\n"


def test_a_process_that_was_killed_is_followed_by_another(endpoint: Endpoint) -> None:
    assert asked(endpoint, "/healthz") == "ok\n"
    before = faults().get("endpoint", 0)
    assert endpoint._process is not None
    endpoint._process.kill()
    wait_until(lambda: faults().get("endpoint", 0) > before, "it is told")
    assert asked(endpoint, "/healthz") == "ok\n"


def test_a_metric_that_fails_is_told_and_the_next_answer_is_right(
    endpoint: Endpoint, moment: Moment
) -> None:
    moment.fails = True
    with pytest.raises(HTTPError, match="503"):
        asked(endpoint, "/metrics")
    moment.fails = False
    assert "moment " in asked(endpoint, "/metrics")
    assert asked(endpoint, "/healthz") == "ok\n"


def test_the_port_is_free_after_its_end(moment: Moment) -> None:
    first = Endpoint(CollectorRegistry(), Health(), "127.0.0.1", 0)
    port = first.port
    assert asked(first, "/healthz") == "ok\n"
    first.close()
    second = Endpoint(CollectorRegistry(), Health(), "127.0.0.1", port)
    assert asked(second, "/healthz") == "ok\n"
    second.close()


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
