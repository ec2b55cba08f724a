"""Measuring links at the start, through the path that jobs use.

What is measured of d2h is what it is planned for: devices that save workspaces.

Content is stored, and read back through the link into extents of the device with its digest
checked: what a plan will be charged is what is measured. Full extents give the bandwidth, two in
flight as always, and more content than caches hold; content of next to nothing, as many pieces one
after the other as a job has, gives the overhead of one transfer in a row.

A GPU reads by a stream, as for a job whose client has consumed everything beforehand. There the
overhead is what a full extent in a row takes beyond its bandwidth: copies are enqueued while others
are under way, so what the agent does for each is none of the link's time.

Devices share links (a storage tier's), or what links of their own lead to (a root port, the
memory of the host). So every device is measured alone and then all of them at once; each link is
planned with the slowest that it was, and with the largest overhead. The rate of a link that devices
share is that of all they read together.

The content is the same at every start, so that it is found again in the store rather than added;
no reference is kept, so that it goes when its place is needed.

It must not run while an earlier agent's clients are expected: what they refer to could be evicted
for the probe. Then, the rates of last time hold.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Self

from tierline_agent.concurrency import gather_all
from tierline_agent.devices.base import Backup, Device, Extent, StreamOrder
from tierline_agent.errors import StreamFailed
from tierline_agent.links.link import Link
from tierline_agent.links.meter import WINDOW_TRANSFERS, LinkRate
from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT
from tierline_agent.processes import state
from tierline_agent.storage.node_tiers import Storage, Stored, Tier
from tierline_agent.tiers import MediumFailure, NoSpace, domain_key
from tierline_agent.tiers.memory import scratch
from tierline_agent.tiers.sources import Source

_log = logging.getLogger(__name__)
_DOMAIN = "tierline probe"
_WORKING_SET_BYTES = 128 << 20  # more than caches hold: plans stream from memory, not from caches
_MOST_CONTENTS = 64
_TARGETS = 4 * IN_FLIGHT
_READ_WINDOWS = 8
_SAVE_WINDOWS = 8
_LONGEST_S = 1.5
_SMALL_BYTES = 4096
_SMALL_TRANSFERS = 64
_SMALL_ROUNDS = 5
_SHORT_ROW = 16
_LONG_ROW_S = 0.06  # an end is seen up to a millisecond late: 2 % of an extent's time at most
_ROW_ROUNDS = 3


Reads = Callable[[Sequence[bytes]], Awaitable[None]]
"""Brings the contents of these digests into fast memory, as a job would."""


async def measure(storage: Storage, devices: Mapping[str, Device]) -> None:
    """Measure every link of every tier to each device, by its name.

    A tier that is full keeps no rates. Raises TierError and OSError if a medium fails.
    """
    for link in storage.links:
        link.meter.planned = None
    with ExitStack() as lent:
        probes = [
            _Probe(storage, name, device, lent.enter_context(_extents(device)))
            for name, device in devices.items()
        ]
        for tier in storage.tiers.values():
            for probe in probes:
                await _measure_alone(tier, probe)
            if len(probes) > 1:
                await _measure_together(tier, probes)


@contextmanager
def _extents(device: Device) -> Iterator[list[Extent]]:
    extents = [device.create_extent() for _ in range(_TARGETS)]
    try:
        yield extents
    finally:
        for extent in extents:
            device.destroy_extent(extent)


@dataclass(frozen=True)
class _Probe:
    """A device that reads into some extents."""

    storage: Storage
    name: str
    device: Device
    extents: Sequence[Extent]

    def reads(self, tier: Tier) -> Reads:
        """How it reads from a tier."""

        def source(digest: bytes) -> Source:
            return self.storage.source(self.name, _DOMAIN, Stored(tier, digest, 0), "the probe")

        way = _by_stream if self.device.copies_itself else _by_links
        return way(self.device, self.extents, source)


def _by_links(
    device: Device, extents: Sequence[Extent], source: Callable[[bytes], Source]
) -> Reads:
    """Reads by the workers of the link, as the host's stream has them done."""
    idle: SimpleQueue[Extent] = SimpleQueue()
    for extent in extents:
        idle.put(extent)

    def load(wanted: Source) -> Callable[[], int]:
        def work() -> int:
            into = idle.get()  # there are more than a link has in flight
            try:
                return device.load(into, wanted)
            finally:
                idle.put(into)

        return work

    async def run(wanted: Source) -> None:
        await wanted.link.run(BACKGROUND_NS, load(wanted), device=wanted.device)

    async def read(digests: Sequence[bytes]) -> None:
        await gather_all(run(source(digest)) for digest in digests)

    return read


def _by_stream(
    device: Device, extents: Sequence[Extent], source: Callable[[bytes], Source]
) -> Reads:
    """Reads by a stream of the device."""

    async def read(digests: Sequence[bytes]) -> None:
        failures: list[StreamFailed] = []
        words = device.create_words()
        words.interrupt()  # nothing waits for a client
        try:
            stream = device.open_stream(
                StreamOrder(
                    sources=[source(digest) for digest in digests],
                    ring=extents,
                    words=words,
                    deadline_ns=BACKGROUND_NS,
                    published=0,
                    on_finished=lambda _stream: None,
                    on_failure=lambda _stream, failure: failures.append(failure),
                    measures=True,
                )
            )
            await stream.finished
        finally:
            words.close()
        if failures:
            raise MediumFailure(f"cannot measure the links: {failures[0]}") from failures[0]

    return read


async def _measure_alone(tier: Tier, probe: _Probe) -> None:
    small = _content(0, _SMALL_BYTES)
    read, link = probe.reads(tier), tier.reads[probe.name]
    with (
        _Measured(tier.write) as stored,
        _Measured(link) as loaded,
        _Contents(tier, probe.device.extent_bytes) as contents,
    ):
        try:
            stored.restart()
            await contents.store()
            stored.overhead_s = await _time(contents.put(small))
        except NoSpace:
            return
        if not tier.measured:
            stored.overhead_s = await _save_for_a_while(tier.write, probe)
        *full, tiny = contents.digests
        if not probe.device.copies_itself:
            loaded.overhead_s = await _of_next_to_nothing(read, tiny)
        await read(full)
        loaded.restart()  # what is next to nothing would be the slowest of all that it saw
        await _read_for_a_while(read, full)
        if probe.device.copies_itself:
            loaded.overhead_s = await _beyond_bandwidth(read, full, link, probe.device)


async def _of_next_to_nothing(read: Reads, tiny: bytes) -> float:
    """Seconds of one transfer among many, each of next to nothing."""
    row = [tiny] * _SMALL_TRANSFERS
    return statistics.median([await _time(read(row)) for _ in range(_SMALL_ROUNDS)]) / len(row)


async def _beyond_bandwidth(
    read: Reads, full: Sequence[bytes], link: Link, device: Device
) -> float:
    """Seconds that each further full extent adds to a row, beyond its copy at the link's rate.

    How long a row takes by itself, until its end is seen, is in the short one and the long one.
    """
    rate = link.meter.median_bytes_per_s
    if rate is None:
        return 0.0
    copy_s = device.extent_bytes / rate
    more = max(_SHORT_ROW, math.ceil(_LONG_ROW_S / copy_s))
    extents = list(itertools.islice(itertools.cycle(full), _SHORT_ROW + more))
    short_s, long_s = [
        statistics.median([await _time(read(row)) for _ in range(_ROW_ROUNDS)])
        for row in (extents[:_SHORT_ROW], extents)
    ]
    return max(0.0, (long_s - short_s) / more - copy_s)


async def _measure_together(tier: Tier, probes: Sequence[_Probe]) -> None:
    """Let all devices read at once."""
    with ExitStack() as measured, _Contents(tier, probes[0].device.extent_bytes) as contents:
        try:
            await contents.store()
        except NoSpace:
            return
        for link in dict.fromkeys(tier.reads.values()):
            measured.enter_context(_Measured(link)).restart()
        # each begins elsewhere: else what one reads would be in a cache for the others
        apart = len(contents.digests) / len(probes)
        await gather_all(
            _read_for_a_while(probe.reads(tier), _from(round(at * apart), contents.digests))
            for at, probe in enumerate(probes)
        )


async def _save_for_a_while(link: Link, probe: _Probe) -> float:
    """Save extents as workspaces are saved, by the link; returns the overhead of one, seconds."""
    device, extents = probe.device, probe.extents[:WINDOW_TRANSFERS]
    backup = await asyncio.to_thread(device.create_backup, len(extents))
    try:
        await asyncio.to_thread(_save, backup, extents)  # both sides are touched now
        each = []
        for _ in range(_SAVE_WINDOWS):
            took_ns = await asyncio.to_thread(_save, backup, extents)
            each.append(took_ns / len(extents))
            for _ in extents:
                link.account(device.extent_bytes, took_ns // len(extents))
        alone = [await asyncio.to_thread(_save, backup, extents[:1]) for _ in range(_SMALL_ROUNDS)]
    finally:
        backup.close()
    return max(0.0, statistics.median(alone) - statistics.median(each)) / 1e9


def _save(backup: Backup, extents: Sequence[Extent]) -> int:
    """Nanoseconds that it takes to save some extents."""
    began_ns = time.monotonic_ns()
    backup.save(extents)
    return time.monotonic_ns() - began_ns


async def _read_for_a_while(read: Reads, digests: Sequence[bytes]) -> None:
    began = time.monotonic()
    for _ in range(_READ_WINDOWS):
        await read(digests)
        if time.monotonic() - began > _LONGEST_S:
            return


class _Measured:
    """A link while it is measured; then it is planned with that, or with before if it was slower.

    Meanwhile nothing is planned: what is measured is no drift.
    """

    def __init__(self, link: Link) -> None:
        self._meter = link.meter
        self._before = link.meter.planned
        self.overhead_s: float | None = None
        """None: as before."""

    def __enter__(self) -> Self:
        self._meter.planned = None
        return self

    def restart(self) -> None:
        """Count from now on."""
        self._meter.restart()

    def __exit__(self, *_: object) -> None:
        meter, before = self._meter, self._before
        median, worst = meter.median_bytes_per_s, meter.worst_bytes_per_s
        overhead_s = self.overhead_s
        if before is not None:
            median = min(median or math.inf, before.bandwidth_bytes_per_s)
            worst = min(worst or math.inf, before.worst_bytes_per_s)
            overhead_s = max(overhead_s or 0.0, before.overhead_s)
        if median is not None and worst is not None and overhead_s is not None:
            meter.planned = LinkRate(median, worst, overhead_s)


class _Contents:
    """The content that is stored in a tier while it is measured; released at the end."""

    def __init__(self, tier: Tier, extent_bytes: int) -> None:
        self.digests: list[bytes] = []
        self._tier = tier
        self._extent_bytes = extent_bytes
        self._key = domain_key(_DOMAIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for digest in self.digests:
            self._tier.store.release(digest)

    async def store(self) -> None:
        """Store full extents, more than caches hold. Raises NoSpace."""
        for number in range(1, _content_count(self._tier, self._extent_bytes) + 1):
            await self.put(_content(number, self._extent_bytes))

    async def put(self, content: memoryview) -> None:
        """Store one more content. Raises NoSpace."""

        def work() -> int:
            self.digests.append(self._tier.put(self._key, content))
            return len(content)

        await self._tier.write.run(BACKGROUND_NS, work)


async def _time(work: Awaitable[None]) -> float:
    """Seconds that some work takes."""
    began = time.monotonic()
    await work
    return time.monotonic() - began


def _from(first: int, digests: Sequence[bytes]) -> list[bytes]:
    return [*digests[first:], *digests[:first]]


def _content_count(tier: Tier, extent_bytes: int) -> int:
    """As many as the working set needs, and no more than half of the tier."""
    half = tier.store.statistics().slots // 2
    wanted = min(max(_WORKING_SET_BYTES // extent_bytes, WINDOW_TRANSFERS), _MOST_CONTENTS)
    return max(min(wanted, half), 1)


def _content(number: int, size_bytes: int) -> memoryview:
    content = scratch(size_bytes)  # direct input and output wants whole pages
    content[:] = Random(number).randbytes(size_bytes)  # noqa: S311 - filler, the same every time
    return content


def save(storage: Storage, path: Path) -> None:
    """Write the planned rates down; if that fails, the next agent measures again."""
    rates = {
        _key(link): [rate.bandwidth_bytes_per_s, rate.worst_bytes_per_s, rate.overhead_s]
        for link in storage.links
        if (rate := link.rate()) is not None
    }
    try:
        state.write_json(path, rates)
    except OSError as failure:
        _log.warning("cannot write the link rates down, they will be measured again: %s", failure)


def restore(storage: Storage, path: Path) -> bool:
    """Plan with the rates of last time; False if some link has none."""
    held: Any = state.read_json(path)
    for link in storage.links:
        try:
            median, worst, overhead_s = (float(value) for value in held[_key(link)])
        except (TypeError, ValueError, KeyError):
            return False
        if not (0 < worst <= median < math.inf and 0 <= overhead_s < math.inf):
            return False
        link.meter.planned = LinkRate(median, worst, overhead_s)
    return True


def _key(link: Link) -> str:
    return f"{link.device}/{link.name}" if link.device else link.name
