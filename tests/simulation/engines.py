"""One job on the two engines, event by event: copies into a ring, layers that wait for them.

This is the mechanism itself, told forwards in time, and shares nothing with the recursion that
predicts it: a copy starts when its link is free and the ring has a free slot, a layer when the
stream has got to its last extent, and slots are given back as a prefix when layers end. Durations
may be shortened per layer and copy, as real ones are.

Jobs are simulated one at a time because nothing crosses from one to the next: a job holds device
and links from dispatch to end, starts with an empty ring, and has consumed all it streamed when its
last layer ends. What may be left over is one extent of something else on a link: `busy_s`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tierline_api.layout import ArenaLayout
from tierline_operator.planning.jobs.pipeline import LinkRate

Shorten = Callable[[], float]


def in_full() -> float:
    """Nothing is shortened."""
    return 1.0


@dataclass(frozen=True)
class Machine:
    """What one task's jobs run on: times and plan."""

    layout: ArenaLayout
    compute_s: Sequence[float]
    resident: frozenset[int]
    ring_extents: int
    link_of_extent: Sequence[int]
    links: Sequence[LinkRate]
    busy_s: float = 0.0
    dispatch_s: float = 0.0


class DeadlockError(RuntimeError):
    """Nothing can happen any more and the job is not done."""


def run_job(machine: Machine, layer: Shorten = in_full, copy: Shorten = in_full) -> float:
    """Seconds from dispatch to the end of the last layer. Raises DeadlockError."""
    now = machine.dispatch_s
    if not machine.layout.layer_count:
        return now + sum(machine.compute_s)
    for arena in range(machine.layout.arena_count):
        layers = [i for i, owner in enumerate(machine.layout.layer_arena) if owner == arena]
        if layers:
            now = _Arena(machine, arena, layers).run(now, layer, copy)
    return now


class _Arena:
    def __init__(self, machine: Machine, arena: int, layers: Sequence[int]) -> None:
        self.machine = machine
        layout = machine.layout
        self.stream = [
            extent
            for extent in layout.extents_of_arena(arena)
            if extent not in machine.resident and layout.last_layer[extent] >= 0
        ]
        self.layers = layers
        # How far the stream must have got before each layer, and how much it gives back after it.
        readers = [layout.last_layer[extent] for extent in self.stream]
        self.needs = [bisect_right(self.stream, layout.last_extent[index]) for index in layers]
        self.frees = [bisect_right(readers, index) for index in layers]
        self.queue: list[list[int]] = [[] for _ in machine.links]
        for position in reversed(range(len(self.stream))):
            self.queue[machine.link_of_extent[self.stream[position]]].append(position)

    def run(self, now: float, shorten_layer: Shorten, shorten_copy: Shorten) -> float:
        machine = self.machine
        arrived = [False] * len(self.stream)
        published = consumed = at = 0
        computing = False
        idle = [False] * len(machine.links)
        events: list[tuple[float, int, int]] = []
        for link in range(len(machine.links)):
            heapq.heappush(events, (now + machine.busy_s, link, -1))
        if machine.busy_s == 0:
            idle, events = [True] * len(machine.links), []
        while True:
            for link, free in enumerate(idle):
                waiting = self.queue[link]
                if not free or not waiting or waiting[-1] - consumed >= machine.ring_extents:
                    continue
                position = waiting.pop()
                size = machine.layout.extent_sizes[self.stream[position]]
                ends = now + machine.links[link].copy_s(size) * shorten_copy()
                heapq.heappush(events, (ends, link, position))
                idle[link] = False
            if not computing and published >= self.needs[at]:
                ends = now + machine.compute_s[self.layers[at]] * shorten_layer()
                heapq.heappush(events, (ends, -1, 0))
                computing = True
            if not events:
                raise DeadlockError(f"layer {self.layers[at]} waits for ever")
            now, link, position = heapq.heappop(events)
            if link < 0:
                computing = False
                consumed = max(consumed, self.frees[at])
                at += 1
                if at == len(self.layers):
                    return now
                continue
            idle[link] = True
            if position >= 0:
                arrived[position] = True
                while published < len(arrived) and arrived[published]:
                    published += 1
