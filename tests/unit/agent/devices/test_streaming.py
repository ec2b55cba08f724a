from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.devices.base import Ahead, Extent, StreamOrder
from tierline_agent.devices.cpu import CpuDevice, CpuWords
from tierline_agent.devices.host_stream import Stream, StreamRunner
from tierline_agent.errors import StreamFailed
from tierline_agent.links.link import Link
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.tiers import CorruptExtent
from tierline_agent.tiers.sources import Source
from tierline_client import words

EXTENT_BYTES = 64 << 10
TIMEOUT_S = 60.0


def reader(byte: int) -> Callable[[memoryview], int]:
    def read(target: memoryview) -> int:
        target[:] = bytes([byte]) * len(target)
        return len(target)

    return read


@dataclass
class Bench:
    """A device, its runner and two links; a stream is made of sources."""

    device: CpuDevice
    runner: StreamRunner
    links: list[Link]
    words: CpuWords
    ring: list[Extent] = field(default_factory=list)
    failures: list[StreamFailed] = field(default_factory=list)

    def sources(self, count: int) -> list[Source]:
        return [
            Source(self.links[number % 2], reader(number), f"extent {number}")
            for number in range(count)
        ]

    def start(
        self, sources: list[Source], slots: int, published: int = 0, ahead: Ahead | None = None
    ) -> Stream:
        self.ring = [self.device.create_extent() for _ in range(slots)]
        stream = Stream(
            device=self.device,
            sources=sources,
            ring=self.ring,
            words=self.words,
            deadline_ns=1 if ahead is None else BACKGROUND_NS,
            published=published,
            ahead=ahead,
            on_finished=lambda _stream: None,
            on_failure=lambda _stream, failure: self.failures.append(failure),
        )
        self.runner.start(stream)
        return stream

    def go(self, stream: Stream, sources: list[Source], published: int) -> bool:
        """What an executor does when the job of a stream that went ahead is granted."""
        self.words.reset(published)
        return stream.go(
            StreamOrder(
                sources=sources,
                ring=self.ring,
                words=self.words,
                deadline_ns=1,
                published=published,
                on_finished=lambda _stream: None,
                on_failure=lambda _stream, failure: self.failures.append(failure),
            )
        )

    def first_byte(self, slot: int) -> int:
        found = 0

        def read(target: memoryview) -> int:
            nonlocal found
            found = target[0]
            return 0

        self.device.fill(self.ring[slot], read)
        return found

    async def consume(self, first: int, last: int, slots: int) -> list[int]:
        """What a client sees that reads extents first .. last-1 in order."""
        seen = []
        for number in range(first, last):
            await self.published(number + 1)
            seen.append(self.first_byte(number % slots))
            self.publish_consumed(number + 1)
        return seen

    def publish_consumed(self, count: int) -> None:
        words.publish(self.words._address + 64, count)

    async def published(self, count: int) -> None:
        assert await asyncio.to_thread(words.wait, self.words._address, count, TIMEOUT_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    device = CpuDevice(EXTENT_BYTES, 64 * EXTENT_BYTES)
    made = Bench(device, StreamRunner("test"), [Link("a"), Link("b")], device.create_words())
    yield made
    made.runner.close()
    for link in made.links:
        link.close()
    for extent in made.ring:
        device.destroy_extent(extent)
    made.words.close()


def damaged(_target: memoryview) -> int:
    """Read an extent with changed bytes."""
    raise CorruptExtent("not what was stored")


@pytest.mark.parametrize("slots", [1, 2, 5, 12])
@in_loop
async def test_extents_of_two_links_are_published_in_order(bench: Bench, slots: int) -> None:
    stream = bench.start(bench.sources(12), slots)
    assert await bench.consume(0, 12, slots) == list(range(12))
    await stream.finished
    assert stream.streamed_bytes == 12 * EXTENT_BYTES
    assert bench.failures == []


@in_loop
async def test_a_stream_resumes_at_a_count(bench: Bench) -> None:
    bench.words.publish(7)
    bench.publish_consumed(5)
    stream = bench.start(bench.sources(10), 3, published=7)
    await bench.published(8)
    assert bench.first_byte(7 % 3) == 7
    bench.publish_consumed(6)
    assert await bench.consume(7, 10, 3) == [7, 8, 9]
    await stream.finished
    assert stream.streamed_bytes == 3 * EXTENT_BYTES


@in_loop
async def test_nothing_is_published_after_damage(bench: Bench) -> None:
    sources = bench.sources(8)
    sources[3] = Source(bench.links[1], damaged, "extent 3 of the test")
    stream = bench.start(sources, 8)
    await stream.finished
    assert bench.words.published <= 3
    (failure,) = bench.failures
    assert failure.corrupt
    assert "extent 3 of the test" in str(failure)


@in_loop
async def test_a_client_that_takes_its_word_back_keeps_no_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waited_s = words.wait, []

    def wait_and_note(address: int, at_least: int, timeout_s: float) -> bool:
        waited_s.append(timeout_s)
        return wait(address, at_least, timeout_s)

    monkeypatch.setattr(words, "wait", wait_and_note)
    monkeypatch.setattr(bench.words, "interrupt", lambda: bench.publish_consumed(0))
    stream = bench.start(bench.sources(6), 3)
    while not waited_s:
        await asyncio.sleep(0)
    stream.cancel()
    await stream.finished
    assert max(waited_s) <= 0.01, "so long may all others wait for the device"


@pytest.mark.parametrize("resumable", [False, True])
@in_loop
async def test_a_cancelled_stream_leaves_nothing_in_flight(bench: Bench, resumable: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(target: memoryview) -> int:
        begun.set()
        assert go.wait(TIMEOUT_S)
        return reader(9)(target)

    sources = bench.sources(6)
    sources[2] = Source(bench.links[0], slow, "slow")
    stream = bench.start(sources, 3)
    await asyncio.to_thread(begun.wait, TIMEOUT_S)
    stream.cancel(resumable=resumable)
    await asyncio.sleep(0)
    assert not stream.finished.done()
    go.set()
    await stream.finished
    assert bench.words.published <= 2
    assert (bench.words.consumed == 0) is resumable
    stream.cancel()  # once more changes nothing


@in_loop
async def test_the_runner_goes_on_with_the_next_stream(bench: Bench) -> None:
    first = bench.start(bench.sources(6), 2)
    await bench.published(2)
    first.cancel()
    await first.finished
    for extent in bench.ring:
        bench.device.destroy_extent(extent)
    bench.words.reset()
    second = bench.start(bench.sources(4), 2)
    assert await bench.consume(0, 4, 2) == [0, 1, 2, 3]
    await second.finished


# -- ahead of a job


@dataclass
class Gate:
    """A read that says when it begins, and ends when it may."""

    byte: int
    begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, target: memoryview) -> int:
        self.begun.set()
        assert self.may_end.wait(TIMEOUT_S)
        return reader(self.byte)(target)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, TIMEOUT_S)


async def arrived(stream: Stream, count: int) -> None:
    """Until so many are in place; the clock is the loop's, which is real here."""
    async with asyncio.timeout(TIMEOUT_S):
        while stream.in_place < count:
            await asyncio.sleep(0.001)


@in_loop
async def test_between_jobs_the_ring_is_filled_one_extent_at_a_time(bench: Bench) -> None:
    gates = [Gate(number) for number in range(3)]
    sources = bench.sources(8)
    for number, gate in enumerate(gates):
        sources[number] = Source(bench.links[number % 2], gate, "gated")
    stream = bench.start(sources, 3, ahead=Ahead.BETWEEN_JOBS)
    for number, gate in enumerate(gates):
        await gate.has_begun()
        assert not any(later.begun.is_set() for later in gates[number + 1 :])
        gate.may_end.set()
    await arrived(stream, 3)
    assert bench.words.published == 0
    assert bench.go(stream, sources, published=3)
    assert await bench.consume(0, 8, 3) == list(range(8))
    await stream.finished
    assert stream.streamed_bytes == 8 * EXTENT_BYTES
    assert bench.failures == []


@in_loop
async def test_a_job_takes_over_the_extent_that_is_under_way(bench: Bench) -> None:
    sources, gate = bench.sources(5), Gate(1)
    sources[1] = Source(bench.links[1], gate, "gated")
    stream = bench.start(sources, 2, ahead=Ahead.BETWEEN_JOBS)
    await gate.has_begun()
    # The job was granted before the first one was seen to be there.
    assert bench.go(stream, sources, published=0)
    await bench.published(1)
    gate.may_end.set()
    assert await bench.consume(0, 5, 2) == list(range(5))
    await stream.finished


@in_loop
async def test_a_ring_that_holds_everything_waits_for_its_job(bench: Bench) -> None:
    sources = bench.sources(2)
    stream = bench.start(sources, 2, ahead=Ahead.BETWEEN_JOBS)
    await arrived(stream, 2)
    assert not stream.finished.done()
    assert bench.go(stream, sources, published=1)
    assert await bench.consume(0, 2, 2) == [0, 1]
    await stream.finished


@in_loop
async def test_after_a_job_a_slot_is_filled_when_it_was_consumed(bench: Bench) -> None:
    """Of five extents in two slots the last two are numbers 4 and 3."""
    consumed: list[int] = []

    def watched(number: int) -> Callable[[memoryview], int]:
        def read(target: memoryview) -> int:
            consumed.append(bench.words.consumed)
            return reader(number)(target)

        return read

    sources = [Source(bench.links[0], watched(number), f"extent {number}") for number in range(5)]
    bench.words.reset(5)
    stream = bench.start(sources, 2, ahead=Ahead.AFTER_A_JOB)
    for count in (4, 5):
        bench.publish_consumed(count)
    await arrived(stream, 2)
    assert consumed == [5, 5]
    assert (bench.words.published, bench.words.consumed) == (5, 5)
    stream.cancel()
    await stream.finished
    assert (bench.words.published, bench.words.consumed) == (5, 5)


@in_loop
async def test_the_end_of_the_job_frees_the_ring(bench: Bench) -> None:
    sources = bench.sources(5)
    stream = bench.start(sources, 2, ahead=Ahead.AFTER_A_JOB)
    stream.ring_is_free()
    await arrived(stream, 2)
    stream.cancel()
    await stream.finished
    assert stream.in_place == 2


@in_loop
async def test_who_cancels_waits_for_the_extent_under_way_alone(bench: Bench) -> None:
    sources, gate = bench.sources(5), Gate(0)
    sources[0] = Source(bench.links[0], gate, "gated")
    stream = bench.start(sources, 3, ahead=Ahead.BETWEEN_JOBS)
    await gate.has_begun()
    stream.cancel()
    assert not stream.finished.done()
    assert not bench.go(stream, sources, published=0)
    gate.may_end.set()
    await stream.finished
    assert stream.in_place == 1
    assert (bench.words.published, bench.words.consumed) == (0, 0)


@in_loop
async def test_damage_ahead_of_a_job_ends_the_copies_alone(bench: Bench) -> None:
    sources = bench.sources(5)
    sources[1] = Source(bench.links[1], damaged, "extent 1 of the test")
    stream = bench.start(sources, 3, ahead=Ahead.BETWEEN_JOBS)
    await stream.finished
    assert stream.in_place == 1
    assert [failure.corrupt for failure in bench.failures] == [True]
    assert not bench.go(stream, sources, published=1)
    assert bench.words.published == 1


@in_loop
async def test_an_extent_that_waits_for_its_link_goes_by_its_jobs_deadline(bench: Bench) -> None:
    link, holders, order = bench.links[0], [Gate(0), Gate(0)], list[str]()

    def note(name: str, byte: int) -> Callable[[memoryview], int]:
        def read(target: memoryview) -> int:
            order.append(name)
            return reader(byte)(target)

        return read

    for holder in holders:
        link.submit(0, functools.partial(holder, memoryview(bytearray(1))), _ignore)
    for holder in holders:
        await holder.has_begun()
    first = bench.sources(2)
    first[0] = Source(link, note("ours", 7), "ours")
    stream = bench.start(first, 2, ahead=Ahead.BETWEEN_JOBS)
    async with asyncio.timeout(TIMEOUT_S):
        while not stream._waiting:
            await asyncio.sleep(0.001)
    other = threading.Event()

    def somebody_elses() -> int:
        order.append("another job's")
        other.set()
        return 0

    link.submit(2, somebody_elses, _ignore)
    assert bench.go(stream, first, published=0)
    holders[0].may_end.set()  # one worker, so that the order in which it takes them is theirs
    assert await bench.consume(0, 2, 2) == [7, 1]
    await stream.finished
    assert await asyncio.to_thread(other.wait, TIMEOUT_S)
    holders[1].may_end.set()
    assert order == ["ours", "another job's"]


def _ignore(_moved: int, _failure: BaseException | None) -> None:
    pass
