"""Measuring links at the start, through the path that jobs use.

Content is stored, and read back through the link into an extent of the device with its digest
checked: what a plan will be charged is what is measured. Full extents give the bandwidth, two in
flight as always, and more content than caches hold; content of next to nothing, as many behind each
other as a job has, gives the overhead of one transfer in a row.

The content is the same at every start, so that it is found again in the store rather than added;
no reference is kept, so that it goes when its place is needed.

It must not run while an earlier agent's clients are expected: what they refer to could be evicted
for the probe. Then, the rates of last time hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

from tierline_agent import state
from tierline_agent.devices.base import Device, Extent
from tierline_agent.link_meter import WINDOW_TRANSFERS, LinkRate
from tierline_agent.links import Link
from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT
from tierline_agent.sessions.loading import gather_all
from tierline_agent.storage import Storage, Stored, Tier
from tierline_agent.tiers import NoSpace, domain_key
from tierline_agent.tiers.memory import scratch

_DOMAIN = "tierline probe"
_WORKING_SET_BYTES = 128 << 20  # more than caches hold: plans stream from memory, not from caches
_MOST_CONTENTS = 64
_TARGETS = 4 * IN_FLIGHT
_READ_WINDOWS = 8
_LONGEST_S = 1.5
_SMALL_BYTES = 4096
_SMALL_TRANSFERS = 16
_SMALL_ROUNDS = 5


async def measure(storage: Storage, device: Device, name: str) -> None:
    """Measure every link of every tier to one device, called `name`, one after another.

    A tier that is full keeps no rates. Raises TierError and OSError if a medium fails.
    """
    extents = [device.create_extent() for _ in range(_TARGETS)]
    idle: SimpleQueue[Extent] = SimpleQueue()
    try:
        for extent in extents:
            idle.put(extent)
        for tier in storage.tiers.values():
            if tier.reads[name].rate() is None:  # else it is another device's link too
                await _measure_tier(storage, tier, device, name, idle)
    finally:
        for extent in extents:
            device.destroy_extent(extent)


async def _measure_tier(
    storage: Storage, tier: Tier, device: Device, name: str, idle: SimpleQueue[Extent]
) -> None:
    read = tier.reads[name]
    key = domain_key(_DOMAIN)
    metered = not device.copies_itself
    small = _content(0, _SMALL_BYTES)
    contents = [
        _content(number, device.extent_bytes)
        for number in range(1, _content_count(tier, device.extent_bytes) + 1)
    ]
    digests: list[bytes] = []

    def store(content: memoryview) -> Callable[[], int]:
        def work() -> int:
            digests.append(tier.store.put(key, content))
            return len(content)

        return work

    def load(digest: bytes) -> Callable[[], int]:
        def work() -> int:
            into = idle.get()  # there are more than a link has in flight
            try:
                source = storage.source(name, _DOMAIN, Stored(tier, digest, 0), "the probe")
                return device.load(into, source)
            finally:
                idle.put(into)

        return work

    try:
        tier.write.meter.restart()
        for content in contents:
            await tier.write.run(BACKGROUND_NS, store(content))
        overhead_s = await _time(tier.write, [store(small)])
        _plan(tier.write, overhead_s)
        *full, tiny = digests
        overheads = [
            await _time(read, [load(tiny)] * _SMALL_TRANSFERS, metered=metered)
            for _ in range(_SMALL_ROUNDS)
        ]
        await gather_all(_ran(read, load(digest), metered=metered) for digest in full)
        read.meter.restart()
        began = time.monotonic()
        for _ in range(_READ_WINDOWS):
            await gather_all(_ran(read, load(digest), metered=metered) for digest in full)
            if time.monotonic() - began > _LONGEST_S:
                break
        _plan(read, statistics.median(overheads))
    except NoSpace:
        return
    finally:
        for digest in digests:
            tier.store.release(digest)


async def _ran(link: Link, work: Callable[[], int], *, metered: bool = True) -> None:
    await link.run(BACKGROUND_NS, work, metered=metered)


async def _time(link: Link, transfers: list[Callable[[], int]], *, metered: bool = True) -> float:
    """Seconds that each of these transfers adds when they run one behind the other."""
    began = time.monotonic()
    await gather_all(_ran(link, work, metered=metered) for work in transfers)
    return (time.monotonic() - began) / len(transfers)


def _plan(link: Link, overhead_s: float) -> None:
    meter = link.meter
    median, worst = meter.median_bytes_per_s, meter.worst_bytes_per_s
    if median is not None and worst is not None:
        meter.planned = LinkRate(median, worst, overhead_s)


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
    """Write the planned rates down. Raises OSError."""
    rates = {
        _key(link): [rate.bandwidth_bytes_per_s, rate.worst_bytes_per_s, rate.overhead_s]
        for link in storage.links
        if (rate := link.rate()) is not None
    }
    state.write_json(path, rates, durable=True)


def restore(storage: Storage, path: Path) -> bool:
    """Plan with the rates of last time; False if some link has none."""
    held: Any = state.read_json(path)
    for link in storage.links:
        try:
            median, worst, overhead_s = (float(value) for value in held[_key(link)])
        except (TypeError, ValueError, KeyError):
            return False
        link.meter.planned = LinkRate(median, worst, overhead_s)
    return True


def _key(link: Link) -> str:
    return f"{link.device}/{link.name}" if link.device else link.name
