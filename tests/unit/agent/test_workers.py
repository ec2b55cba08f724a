"""What a worker meets ends that, and not the worker: each goes on with what comes next."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
from tests.unit.agent.loops import in_loop
from tests.unit.agent.transport.test_closing import inside_a_connection, is_closed, until

from tierline_agent.concurrency import attempt, faults
from tierline_agent.devices.host_stream import StreamRunner
from tierline_agent.links.link import Link
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.transfers import IN_FLIGHT
from tierline_agent.processes.identity import Process, ProcessWatch, start_ticks
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry import logs
from tierline_agent.telemetry.endpoint import Endpoint
from tierline_agent.telemetry.health import Health
from tierline_agent.telemetry.metrics import Metrics
from tierline_agent.transport import closing as closer
from tierline_agent.transport.closing import Closer


class UnexpectedError(Exception):
    """What nobody expects."""


def fail(*_: object) -> int:
    raise UnexpectedError


def fails(*_: object) -> None:
    fail()


@pytest.fixture
def counted() -> Callable[[str], int]:
    """How often workers of a kind met something since the test began."""
    before = faults()
    return lambda worker: faults().get(worker, 0) - before.get(worker, 0)


FAMILIES = [
    family for name, family in vars(socket).items() if name.startswith(("AF_", "PF_")) and family
]
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


def descriptors() -> list[int]:
    """One of each kind of socket that this machine lets one have, and of what else can be sent."""
    made = [os.memfd_create("x"), os.eventfd(0), os.open("/", os.O_PATH), *os.pipe()]
    for family in FAMILIES:
        for kind in KINDS:
            with suppress(OSError):
                made.append(socket.socket(family, kind).detach())
    return made


def test_every_kind_of_descriptor_is_closed(counted: Callable[[str], int]) -> None:
    """Python takes no bytes as an option of some kinds, and knows others not at all."""
    plain, sent = descriptors(), [inside_a_connection(one) for one in descriptors()]
    subject = Closer()
    subject.close("a", plain)
    subject.close("a", sent)
    until(lambda: all(map(is_closed, plain + sent)))
    assert counted("closing") == 0


def test_what_fails_at_one_descriptor_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[str], int]
) -> None:
    monkeypatch.setattr(closer, "_is_of_unix", fail)
    subject, drained = Closer(), threading.Event()
    failing = [os.dup(0) for _ in range(3)]
    subject.close("a", failing)
    until(lambda: counted("closing") == 3)
    monkeypatch.undo()
    after = os.dup(0)
    subject.close("a", [after])
    until(lambda: is_closed(after))
    monkeypatch.setattr(closer, "MOST", 1)
    until(lambda: not subject.is_full("a", drained.set))
    for one in failing:
        os.close(one)


def test_without_a_thread_descriptors_wait_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[str], int]
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    subject, first, second = Closer(), os.dup(0), os.dup(0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        subject.close("a", [first])
    assert counted("closing") == 1
    subject.close("a", [second])
    until(lambda: is_closed(first) and is_closed(second))


@in_loop
async def test_a_link_outlives_the_ends_of_its_transfers(counted: Callable[[str], int]) -> None:
    with closing(Link("link", queue_limit=100)) as link:
        for _ in range(2 * IN_FLIGHT):
            link.submit(0, lambda: 1, fails)
        assert await link.run(0, lambda: 5) == 5
        until(lambda: counted("link") == 2 * IN_FLIGHT)


def test_the_runner_of_streams_outlives_a_stream(counted: Callable[[str], int]) -> None:
    class Broken:
        def run(self) -> None:
            fail()

    class Sound:
        ran = threading.Event()

        def run(self) -> None:
            self.ran.set()

    runner = StreamRunner("cpu")
    runner.start(Broken())
    runner.start(Sound())
    assert Sound.ran.wait(60)
    assert counted("streams") == 1
    runner.close()


def test_the_log_goes_on(monkeypatch: pytest.MonkeyPatch, counted: Callable[[str], int]) -> None:
    reading, writing = os.pipe()
    log = logs.Log(writing)
    monkeypatch.setattr(os, "write", fail)
    log.emit(logging.makeLogRecord({"msg": "lost"}))
    until(lambda: counted("log") == 1)
    monkeypatch.undo()
    log.emit(logging.makeLogRecord({"msg": "written"}))
    assert b"written" in os.read(reading, 4096)


def test_the_endpoint_goes_on(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[str], int]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Endpoint, "_start", fail)
        subject = Endpoint(Metrics("").registry, Health(), "127.0.0.1", 0)
        until(lambda: counted("endpoint") >= 1)
    with closing(subject), socket.create_connection(("127.0.0.1", subject.port)) as asking:
        asking.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert asking.recv(64).startswith(b"HTTP/1.1 200")


def test_what_fails_in_a_round_keeps_nothing_from_the_rest(counted: Callable[[str], int]) -> None:
    done: list[int] = []
    for step in (lambda: done.append(1), lambda: done.append(fail()), lambda: done.append(3)):
        attempt("rounds", step)
    assert (done, counted("rounds")) == ([1, 3], 1)


@in_loop
async def test_a_death_is_told_to_all_that_wait_for_it(counted: Callable[[str], int]) -> None:
    watch = ProcessWatch(asyncio.get_running_loop())
    told = asyncio.Event()
    with subprocess.Popen(["sleep", "600"]) as program:
        ticks = start_ticks(program.pid)
        assert ticks is not None
        process = Process(program.pid, ticks)
        for callback in (fails, fails, lambda _: told.set()):
            watch.on_death(process, callback)
        program.kill()
        async with asyncio.timeout(60):
            await told.wait()
    assert counted("deaths") == 2


def test_one_that_cannot_be_asked_keeps_no_other_from_asking(
    counted: Callable[[str], int],
) -> None:
    leases, granted = LeaseManager(lambda: 0), list[int]()
    holder = leases.ticket(10, Rank.GUARANTEED, fails)
    holder.wanted = fails
    urgent = leases.ticket(1, Rank.GUARANTEED)
    leases.request(holder, granted.append)
    leases.request(urgent, granted.append)
    assert counted("leases") == 2
    leases.release(holder)
    assert granted == [0, 0]
