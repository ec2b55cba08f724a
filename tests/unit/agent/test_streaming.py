from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.devices.base import Extent
from tierline_agent.devices.cpu import CpuDevice, CpuWords
from tierline_agent.errors import StreamFailed
from tierline_agent.links import Link
from tierline_agent.sources import Source
from tierline_agent.streaming import Stream, StreamRunner
from tierline_agent.tiers import CorruptExtent
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

    def start(self, sources: list[Source], slots: int, published: int = 0) -> Stream:
        self.ring = [self.device.create_extent() for _ in range(slots)]
        stream = Stream(
            device=self.device,
            sources=sources,
            ring=self.ring,
            words=self.words,
            deadline_ns=1,
            published=published,
            on_finished=lambda _stream: None,
            on_failure=lambda _stream, failure: self.failures.append(failure),
        )
        self.runner.start(stream)
        return stream

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

    def damaged(_target: memoryview) -> int:
        raise CorruptExtent("not what was stored")

    sources[3] = Source(bench.links[1], damaged, "extent 3 of the test")
    stream = bench.start(sources, 8)
    await stream.finished
    assert bench.words.published <= 3
    (failure,) = bench.failures
    assert failure.corrupt
    assert "extent 3 of the test" in str(failure)


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
