from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    TIMEOUT_S,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import ClosedError, RawClient, RefusedError

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow


def raw(type_: int, payload: bytes, reserved: int = 0) -> bytes:
    return struct.pack("<IHHI", len(payload), type_, reserved, 9) + payload


def lie_about_descriptors(client: RawClient) -> None:
    client.send(p.Digests(0, 0, (b"d" * 32,)))
    client.send(p.Attach(0, 1, 1, 10, 0, 0, 0, 0, (0,)))
    client.send(p.Fds(0, p.DescriptorKind.RING, 0, 1))


def flood_with_descriptors(client: RawClient) -> None:
    end, other = os.pipe()
    try:
        with suppress(BrokenPipeError):  # the agent may end it before all are sent
            for _ in range(12):
                client.send(p.Stats(), [end] * 60)
    finally:
        os.close(end)
        os.close(other)


VIOLATIONS: dict[str, tuple[p.ErrorCode, Callable[[RawClient], object]]] = {
    "an unknown message": (p.ErrorCode.MALFORMED, lambda c: c.send_bytes(raw(999, b""))),
    "a payload beyond the limit": (
        p.ErrorCode.MALFORMED,
        lambda c: c.send_bytes(struct.pack("<IHHI", 1 << 20, 3, 0, 1)),
    ),
    "a reserved field in use": (p.ErrorCode.MALFORMED, lambda c: c.send_bytes(raw(29, b"", 1))),
    "a struct of the wrong length": (p.ErrorCode.MALFORMED, lambda c: c.send_bytes(raw(3, b"x"))),
    "an agent's message": (p.ErrorCode.MALFORMED, lambda c: c.send(p.Ended(1))),
    "HELLO twice": (p.ErrorCode.OUT_OF_ORDER, lambda c: c.send(p.Hello(p.Device.CPU, 0, ""))),
    "STORE without an arena": (p.ErrorCode.OUT_OF_ORDER, lambda c: c.send(p.Store(0, 0, 0, 1))),
    "SEAL without an arena": (p.ErrorCode.OUT_OF_ORDER, lambda c: c.send(p.Seal(0, ()))),
    "FREE without an arena": (p.ErrorCode.OUT_OF_ORDER, lambda c: c.send(p.Free(0))),
    "FETCH without an arena": (p.ErrorCode.OUT_OF_ORDER, lambda c: c.send(p.Fetch(0, 0, 0))),
    "a job on an arena that is not there": (
        p.ErrorCode.OUT_OF_ORDER,
        lambda c: c.send(p.JobBegin(1, 0, p.JobFlags(0), 0, 1)),
    ),
    "a deadline before its release": (
        p.ErrorCode.MALFORMED,
        lambda c: c.send(p.JobBegin(1, p.NO_ARENA, p.JobFlags(0), 2, 1)),
    ),
    "the end of a job that never began": (
        p.ErrorCode.OUT_OF_ORDER,
        lambda c: c.send(p.JobEnd(1, 0, 0, 0, 0)),
    ),
    "descriptors without an ATTACH": (
        p.ErrorCode.MALFORMED,
        lambda c: c.send(p.Fds(0, p.DescriptorKind.RING, 0, 1)),
    ),
    "digests with a gap": (
        p.ErrorCode.OUT_OF_ORDER,
        lambda c: c.send(p.Digests(0, 5, (b"d" * 32,))),
    ),
    "descriptors that were not sent": (p.ErrorCode.MALFORMED, lie_about_descriptors),
    "a flood of descriptors": (p.ErrorCode.MALFORMED, flood_with_descriptors),
    "layers beyond a profile": (
        p.ErrorCode.MALFORMED,
        lambda c: c.send(p.Profile(0, 0, 0, 0, (p.LayerProfile(1, 1, p.LayerFlags(0), "x"),))),
    ),
}


def error_and_end(client: RawClient) -> p.ErrorCode:
    """The code of the ERROR that ends a connection."""
    code = None
    try:
        while True:
            _, message, _ = client.receive()
            if isinstance(message, p.Error):
                code = message.code
    except (ClosedError, ConnectionError):
        assert code is not None
        return code


def test_a_violation_closes_that_connection_and_no_other(shared_agent: AgentProcess) -> None:
    shared_agent.register("bystander", plan(4))
    shared_agent.register("hostile", plan(4))
    bystander = shared_agent.client("bystander")
    arena = bystander.load(content(1, 4))
    for name, (code, violate) in VIOLATIONS.items():
        client = shared_agent.client("hostile")
        violate(client)
        assert error_and_end(client) is code, name
        client.close()
        job = bystander.begin(0)
        assert arena.read_in_job() == content(1, 4), name
        bystander.end(job)
    wait_until(lambda: not shared_agent.task("hostile")["clients"], "the agent lets go of them")


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (p.encode(p.Stats(), 1), p.ErrorCode.OUT_OF_ORDER),
        (raw(1, struct.pack("<IHHIQ64s", 0x4C524954, 2, 0, 0, 0, b"")), None),
        (b"GET / HTTP/1.1\r\n\r\n", p.ErrorCode.MALFORMED),
    ],
    ids=["not HELLO", "another version", "another protocol"],
)
def test_what_does_not_begin_with_hello_is_refused(
    shared_agent: AgentProcess, first: bytes, code: p.ErrorCode | None
) -> None:
    shared_agent.register("task", plan(4))
    client = shared_agent.connect("task")
    client.send_bytes(first)
    assert error_and_end(client) is (code or p.ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("minor", [0, p.MINOR - 1])
def test_a_library_of_an_older_protocol_is_refused(shared_agent: AgentProcess, minor: int) -> None:
    shared_agent.register("task", plan(4))
    with pytest.raises(RefusedError, match=f"speaks protocol 1.{minor} and the agent 1") as refused:
        shared_agent.connect("task").hello(minor=minor)
    assert refused.value.code is p.ErrorCode.UNSUPPORTED_VERSION


def test_what_the_plan_does_not_grant_is_refused_and_nothing_is_lost(
    shared_agent: AgentProcess,
) -> None:
    shared_agent.register("task", plan(6, resident=(1,), ring=2))
    client = shared_agent.client("task")
    for reserve in (
        p.Reserve(0, 1, 7 * EXTENT_BYTES, 0),  # more extents than planned
        p.Reserve(0, 1, 6 * EXTENT_BYTES, 10),  # extent 0 is pinned and not resident
        p.Reserve(0, 5, 6 * EXTENT_BYTES, 0),  # a layer that can never fit the ring
    ):
        with pytest.raises(RefusedError) as refused:
            client.ask(reserve, p.Reserved)
        assert refused.value.code is p.ErrorCode.QUOTA
    with pytest.raises(RefusedError) as refused:
        client.ask(p.Reserve(1, 1, EXTENT_BYTES, 0), p.Reserved)
    assert refused.value.code is p.ErrorCode.NOT_ADMITTED  # arena 1 before arena 0

    arena = client.reserve(6 * EXTENT_BYTES)
    for extent in range(6):
        arena.digests.append(client.store(0, extent, bytes([extent]) * EXTENT_BYTES))
    with pytest.raises(RefusedError) as refused:
        client.ask(p.Seal(0, (p.LayerSpan(2, 5),)), p.Sealed)
    assert refused.value.code is p.ErrorCode.QUOTA
    client.seal(0, 6)
    job = client.begin(0)
    assert arena.read_in_job() == b"".join(bytes([extent]) * EXTENT_BYTES for extent in range(6))
    client.end(job)


@pytest.mark.parametrize(
    ("values", "plan_of_it", "words"),
    [
        ({}, plan(30, resident=tuple(range(14)), ring=4), "bytes are missing"),
        ({}, plan(4, ring=4, workspace=13 * EXTENT_BYTES), "bytes are missing"),
        ({}, {**plan(4), "extentBytes": 1 << 20}, "plan it again"),
        ({}, {**plan(4), "homes": [{"tier": "nvme", "extents": 4}]}, "nvme"),
        ({}, plan(1000), "it holds"),
        ({"name": "../escape"}, plan(4), "name"),
        ({"deadline_ns": 2 * 10**9}, plan(4), "deadline_ns"),
        ({"surprise": 1}, plan(4), "surprise"),
        ({}, {**plan(4), "ringExtents": 0}, "ringExtents"),
    ],
    ids=[
        "residents",
        "workspace",
        "extent size",
        "tier",
        "tier size",
        "name",
        "deadline",
        "field",
        "ring",
    ],
)
def test_registrations_that_do_not_fit_are_refused_in_words(
    shared_agent: AgentProcess, values: dict[str, Any], plan_of_it: dict[str, Any], words: str
) -> None:
    answer = shared_agent.register(**{"name": "task", "plan": plan_of_it, **values})
    assert not answer["ok"]
    assert words in answer["error"]
    assert shared_agent.snapshot()["tasks"] == []


def test_rings_are_shared_inside_a_domain_and_not_beyond(shared_agent: AgentProcess) -> None:
    assert shared_agent.register("a", plan(9, ring=8), domain="one")["ok"]
    assert shared_agent.register("b", plan(9, ring=8), domain="one")["ok"]
    assert shared_agent.register("c", plan(9, ring=8), domain="two")["ok"]
    refusal = shared_agent.register("d", plan(9, ring=1), domain="three")
    assert "65536 bytes are missing" in refusal["error"]


def test_the_number_of_clients_is_bounded(shared_agent: AgentProcess) -> None:
    shared_agent.register("task", plan(4))
    for _ in range(8):
        shared_agent.client("task")
    one_more = shared_agent.connect("task")
    assert error_and_end(one_more) is p.ErrorCode.QUOTA


def test_a_plan_is_for_one_process(shared_agent: AgentProcess) -> None:
    shared_agent.register("task", plan(4, resident=(0,)))
    first, second = shared_agent.client("task"), shared_agent.client("task")
    first.load(content(1, 4))
    with pytest.raises(RefusedError, match="one process") as refused:
        second.reserve(4 * EXTENT_BYTES)
    assert refused.value.code is p.ErrorCode.QUOTA
    first.ask(p.Free(0), p.Freed)
    second.load(content(1, 4))


def test_a_client_that_does_not_read_is_closed(shared_agent: AgentProcess) -> None:
    shared_agent.register("task", plan(4))
    client = shared_agent.client("task")
    frame = p.encode(p.Stats(), 1) * 1000

    def flood() -> None:
        try:
            while True:
                client.socket.sendall(frame)
        except OSError:
            pass

    sender = threading.Thread(target=flood)
    sender.start()
    sender.join(TIMEOUT_S)
    assert not sender.is_alive()
    wait_until(lambda: not shared_agent.task("task")["clients"], "the agent lets go of it")


def test_the_administrator_gets_sentences(shared_agent: AgentProcess) -> None:
    assert "no method" in shared_agent.call("frobnicate")["error"]
    assert "no task 'x'" in shared_agent.call("remove", name="x")["error"]
    assert "since must be" in shared_agent.call("jobs", since=-1)["error"]
    assert "admitted must be" in shared_agent.call("verdict")["error"]
    assert shared_agent.call("verdict", admitted=False)["ok"]
