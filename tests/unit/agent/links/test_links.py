from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.errors import LinkClosed
from tierline_agent.links.link import Link, Transfer
from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT

TIMEOUT_S = 60.0


class Gate:
    """Work that stays in flight until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def work(self) -> int:
        self.begun.set()
        assert self.go.wait(TIMEOUT_S)
        return 10


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link("test", queue_limit=8)
    yield made
    made.close()


def block(link: Link) -> list[Gate]:
    """Keep every worker of the link busy."""
    gates = [Gate() for _ in range(IN_FLIGHT)]
    for gate in gates:
        link.submit(0, gate.work, lambda _moved, _failure: None)
    for gate in gates:
        assert gate.begun.wait(TIMEOUT_S)
    return gates


def test_no_more_than_two_are_in_flight_and_the_most_urgent_is_next(link: Link) -> None:
    gates = block(link)
    order: list[int] = []
    all_done = threading.Event()

    def work(deadline: int) -> int:
        order.append(deadline)
        return 1

    def done(_moved: int, _failure: BaseException | None) -> None:
        if len(order) == 4:
            all_done.set()

    for deadline in (30, 10, 20, 10):
        link.submit(deadline, functools.partial(work, deadline), done)
    assert order == []
    gates[0].go.set()
    assert all_done.wait(TIMEOUT_S)
    assert order == [10, 10, 20, 30]
    gates[1].go.set()


def test_devices_take_turns_and_their_own_deadlines_count(link: Link) -> None:
    gates = block(link)
    order: list[str] = []
    all_done = threading.Event()

    def work(name: str) -> int:
        order.append(name)
        return 1

    def done(_moved: int, _failure: BaseException | None) -> None:
        if len(order) == 11:
            all_done.set()

    def submit(device: str, number: int, deadline: int) -> Transfer:
        name = f"{device}{number}"
        return link.submit(deadline, functools.partial(work, name), done, device=device)

    for number in range(5):  # everything of a is more urgent than anything of b and c
        submit("a", number, 10 - number)
    withdrawn = [submit("b", number, 100) for number in range(3)]
    submit("b", 3, 90)
    submit("c", 0, 80)
    assert link.cancel(withdrawn[1])
    for number in range(2):
        submit("d", number, BACKGROUND_NS)
    gates[0].go.set()
    assert all_done.wait(TIMEOUT_S)
    assert order == ["a4", "b3", "c0", "a3", "b0", "a2", "b2", "a1", "a0", "d0", "d1"]
    gates[1].go.set()


def test_a_cancelled_transfer_does_not_run_and_one_that_began_does(link: Link) -> None:
    gates = block(link)
    waiting = Gate()
    transfer = link.submit(1, waiting.work, lambda _m, _f: None)
    last = threading.Event()
    link.submit(2, lambda: 1, lambda _m, _f: last.set())
    assert link.cancel(transfer)
    for gate in gates:
        gate.go.set()
    assert last.wait(TIMEOUT_S)
    assert not waiting.begun.is_set()


def test_a_full_or_closed_link_refuses(link: Link) -> None:
    gates = block(link)
    failures: list[BaseException | None] = []
    for _ in range(8):
        link.submit(1, lambda: 1, lambda _m, failure: failures.append(failure))
    with pytest.raises(LinkClosed, match="wait already"):
        link.submit(1, lambda: 1, lambda _m, _f: None)
    link.submit(1, lambda: 1, lambda _m, failure: failures.append(failure), device="another")
    closing = threading.Thread(target=link.close)
    closing.start()
    for gate in gates:
        gate.go.set()
    closing.join(TIMEOUT_S)
    assert len(failures) == 9
    with pytest.raises(LinkClosed, match="shut down"):
        link.submit(1, lambda: 1, lambda _m, _f: None)


@in_loop
async def test_a_failure_reaches_who_waits_and_spares_the_link(link: Link) -> None:
    def fail() -> int:
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        await link.run(1, lambda: link.measure(fail))
    assert await link.run(1, lambda: link.measure(lambda: 7)) == 7
    assert (link.meter.errors_total, link.meter.bytes_total) == (1, 7)


@in_loop
async def test_who_stops_waiting_waits_for_what_is_in_flight(link: Link) -> None:
    gate = Gate()
    waiting = asyncio.ensure_future(link.run(1, gate.work))
    await asyncio.to_thread(gate.begun.wait, TIMEOUT_S)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@in_loop
async def test_only_the_links_own_part_of_a_transfer_is_measured(link: Link) -> None:
    def work() -> int:
        link.measure(lambda: 30)
        return 70  # moved by somebody else

    assert await link.run(0, work) == 70
    assert (link.meter.transfers_total, link.meter.bytes_total) == (1, 30)
    link.account(5, 1000)
    assert (link.meter.transfers_total, link.meter.bytes_total) == (2, 35)

    def fails() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await link.run(0, lambda: link.measure(fails))
    assert link.meter.errors_total == 1
