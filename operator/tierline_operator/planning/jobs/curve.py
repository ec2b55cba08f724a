"""The gain of fast memory for one task: job time against resident extents.

For a ring of g extents, two families of resident sets are tried, and the undominated ones kept:

* a *prefix*: the first r extents. The link starts on the rest while the front computes.
* a *spread* ("paced") set: aim at a job time P; layer l may then start at the latest
  (P / C) * (compute before l) + (P / C - 1) * c_l, its share of the slack spread before it. Walk
  the stream once at that pace and keep resident exactly those extents that could not be on time.
  With a small ring this keeps the link busy where a prefix lets it idle (docs/design/theory.md, 3:
  within 3 % of max(compute, bytes / bandwidth), against 15 % for a prefix).

Either way the job time of a point is not the aim but what the recursion of pipeline.py says of the
set, so a poor guess costs memory, never a deadline.

Always resident: pinned extents, those that the task wishes to keep, and of a layer that reads more
extents than the ring has slots, as many as are too many (a ring must never deadlock, trap T9).
Never resident: what the task wishes to stream. A ring must have a slot for each such extent of any
one layer; smaller ones have no point at all.

Invariant: along a curve memory rises and job time falls, strictly; the last point is as fast as all
that may be resident (job time = compute time, where nothing must stream).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from tierline_operator.planning.jobs.pipeline import NEVER, Pipeline

STEPS = 20
"""Prefixes, and aims of paced sets, tried per curve; 64 admit no more of 144 random sets."""


@dataclass(frozen=True)
class Point:
    """One choice for a task; `resident` holds the pinned extents too."""

    resident_extents: int
    total_s: float
    resident: frozenset[int]
    streamed_extents: int


def pareto(
    pipeline: Pipeline, ring_extents: int, *, least_extents: int = 0, steps: int = STEPS
) -> list[Point]:
    """The undominated points for that ring, memory ascending; job times include the start delay.

    `least_extents`: leave out points with fewer resident extents. A ring of 0 gives the fully
    resident point only.
    """
    count = pipeline.layout.extent_count
    most = frozenset(range(count)) - pipeline.streamed
    fastest_s = pipeline.release_compute_s
    if pipeline.streamed:
        fastest_s = pipeline.total_s(most, ring_extents)
    found = {most: fastest_s}
    if ring_extents > 0 and pipeline.layout.layer_count:
        forced = forced_residents(pipeline, ring_extents)
        for chosen in _candidates(pipeline, ring_extents, forced, steps):
            if chosen not in found and len(chosen) >= min(least_extents, len(most)):
                found[chosen] = pipeline.total_s(chosen, ring_extents)
    ordered = sorted(found.items(), key=lambda item: (len(item[0]), item[1]))
    points: list[Point] = []
    for held, total in ordered:
        if total < NEVER and (not points or total < points[-1].total_s * (1 - 1e-9)):
            points.append(Point(len(held), total, held, count - len(held)))
    return points


def forced_residents(pipeline: Pipeline, ring_extents: int) -> frozenset[int]:
    """Extents that no plan with this ring can stream: pinned ones, and what a layer has too many.

    Of a layer that is too large the first extents are kept: they are the ones waited for longest.
    Of what must stream none is kept, so a smaller ring than that needs has no plan.
    """
    layout, must_stream = pipeline.layout, pipeline.streamed
    held = set(layout.pinned_extents | pipeline.kept)
    held.update(extent for extent, reader in enumerate(layout.last_layer) if reader < 0)
    for first, last in zip(layout.first_extent, layout.last_extent, strict=True):
        if last - first + 1 <= ring_extents:
            continue
        streamed = [extent for extent in range(first, last + 1) if extent not in held]
        too_many = max(0, len(streamed) - ring_extents)
        held.update([extent for extent in streamed if extent not in must_stream][:too_many])
    return frozenset(held)


def _candidates(
    pipeline: Pipeline, ring_extents: int, forced: frozenset[int], steps: int
) -> Iterator[frozenset[int]]:
    count = pipeline.layout.extent_count
    yield forced
    stride = max(1, count // steps)
    for size in range(stride, count, stride):
        yield (forced | frozenset(range(size))) - pipeline.streamed
    compute_s = sum(pipeline.compute_s)
    slowest = pipeline.total_s(forced, ring_extents)
    if slowest == NEVER or compute_s <= 0:
        return
    for step in range(steps):
        aim = compute_s + (slowest - compute_s) * step / steps
        yield paced(pipeline, ring_extents, forced, aim)


def paced(pipeline: Pipeline, ring_extents: int, forced: Set[int], aim_s: float) -> frozenset[int]:
    """The extents that could not be on time if the job were to take `aim_s` seconds.

    What must stream is late then, and its layer later; `forced` has what the ring is too small for.
    """
    last_layer, must_stream = pipeline.layout.last_layer, pipeline.streamed
    link_of, copy_s, late_s = pipeline.link_of_extent, pipeline.copy_s, pipeline.late_s
    stretch = aim_s / sum(pipeline.compute_s)
    held = set(forced)
    stream: list[int] = []
    clock = [0.0] * pipeline.link_count
    ready = before = 0.0
    ends: list[float] = []
    for layer, compute in enumerate(pipeline.compute_s):
        due = stretch * before + (stretch - 1) * compute
        if pipeline.arena_starts[layer]:
            start = stretch * before
            stream = []
            ready = start
            clock = [start + pipeline.start_delay_s] * pipeline.link_count
        for extent in pipeline.new_extents[layer]:
            if extent in held:
                continue
            link = link_of[extent]
            begin = clock[link]
            slot = len(stream) - ring_extents
            if slot >= 0:
                reader = last_layer[stream[slot]]
                if reader >= layer:
                    held.add(extent)
                    continue
                begin = begin if begin > ends[reader] else ends[reader]
            copied = begin + copy_s[extent]
            done = copied + late_s[extent]
            done = done if done > ready else ready
            if done > due + 1e-12:
                if extent not in must_stream:
                    held.add(extent)
                    continue
                due = done
            clock[link] = copied
            ready = done
            stream.append(extent)
        before += compute
        ends.append(due + compute)
    return frozenset(held)
