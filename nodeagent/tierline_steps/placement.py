"""Where instances lie in the arena: two that live at the same time share no byte.

Each is put at the lowest place that is free during its whole life, one after another. The order
decides how much is wasted, and no order is best for all: several are tried, and the best is then
improved by placing those at the top earlier, as long as it is told to go on. Small instances lie in
a region of their own at the bottom, so that they do not split the large holes.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from tierline_steps.plan import ALIGNMENT

GoOn = Callable[[], bool]
"""Whether to search on; clocks are the caller's."""

_SMALL = 4096  # an instance of less than this part of the arena is small
_ROUND = 32  # tries, after which it begins again elsewhere
_HOPELESS = 1.15  # of the room: so much is never searched away


@dataclass(frozen=True, slots=True)
class Interval:
    """So many bytes from one step to another, both included; its place is aligned."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """An offset for each interval, and where the highest ends."""

    offsets: tuple[int, ...]
    top_bytes: int


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def placed(intervals: Sequence[Interval], arena_bytes: int, go_on: GoOn, rng: Random) -> Placement:
    """Within the arena, if that is found before it is told to stop; else the best so far."""
    limit = arena_bytes // _SMALL
    small = [index for index, one in enumerate(intervals) if 0 < one.size_bytes < limit]
    large = [index for index, one in enumerate(intervals) if one.size_bytes >= limit]
    offsets = [0] * len(intervals)
    end = _as_they_come(intervals, small, offsets)
    if not large:
        return Placement(tuple(offsets), end)
    base = aligned(end)
    puzzle = _Puzzle([intervals[index] for index in large])
    best = puzzle.best(arena_bytes - base, go_on, rng)
    for index, offset in zip(large, best.offsets, strict=True):
        offsets[index] = base + offset
    return Placement(tuple(offsets), base + best.top_bytes)


def _as_they_come(intervals: Sequence[Interval], chosen: list[int], offsets: list[int]) -> int:
    """Place the chosen ones from 0 on, the first to live first; returns where they end."""
    top = 0
    living: list[tuple[int, int, int]] = []  # offset, end, last
    for index in sorted(chosen, key=lambda one: intervals[one].first):
        one = intervals[index]
        living = [other for other in living if other[2] >= one.first]
        at = 0
        for begin, end, _ in living:
            if begin - at >= one.size_bytes:
                break
            at = end
        insort(living, (at, at + aligned(one.size_bytes), one.last))
        offsets[index] = at
        top = max(top, at + one.size_bytes)
    return top


class _Puzzle:
    def __init__(self, intervals: list[Interval]) -> None:
        self.intervals = intervals
        self.sizes = [aligned(one.size_bytes) for one in intervals]
        self.rivals: list[list[int]] = [[] for _ in intervals]
        begun: list[int] = []
        for one in sorted(range(len(intervals)), key=lambda one: intervals[one].first):
            first = intervals[one].first
            begun = [other for other in begun if intervals[other].last >= first]
            self.rivals[one] += begun
            for other in begun:
                self.rivals[other].append(one)
            begun.append(one)

    def best(self, room: int, go_on: GoOn, rng: Random) -> Placement:
        """Of all rules; and better ones, until one fits or there is no more time."""
        found: list[tuple[Placement, list[int]]] = []
        for order in self._orders():
            placement = self.put(order)
            found.append((placement, order))
            if placement.top_bytes <= room:
                return placement
        best = min(found, key=lambda one: one[0].top_bytes)
        if best[0].top_bytes > room * _HOPELESS:
            return best[0]
        return self._searched([found[0], best], room, go_on, rng)

    def _orders(self) -> list[list[int]]:
        lives = [one.last - one.first + 1 for one in self.intervals]
        crowd = self._crowds()
        sizes = self.sizes
        end = max(one.last for one in self.intervals)

        def to_the_end(one: int) -> tuple[int, ...]:
            """In the order in which they begin, so that they leave no holes among each other."""
            interval = self.intervals[one]
            return (0, interval.first) if interval.last == end else (1, -sizes[one], -interval.last)

        rules: tuple[Callable[[int], tuple[int, ...]], ...] = (
            to_the_end,
            lambda one: (-sizes[one], -lives[one]),
            lambda one: (-crowd[one], -sizes[one]),
            lambda one: (-sizes[one] * lives[one],),
            lambda one: (-lives[one], -sizes[one]),
            lambda one: (self.intervals[one].first, -sizes[one]),
        )
        return [sorted(range(len(sizes)), key=rule) for rule in rules]

    def _crowds(self) -> list[int]:
        """How full it is where an interval meets the most others, in a few grades."""
        sums = [
            self.sizes[one] + sum(self.sizes[other] for other in rivals)
            for one, rivals in enumerate(self.rivals)
        ]
        most = max(sums, default=1) or 1
        return [8 * one // most for one in sums]

    def put(self, order: list[int]) -> Placement:
        """Each at the lowest place that is free."""
        offsets: list[int] = [-1] * len(self.sizes)
        sizes, top = self.sizes, 0
        for one in order:
            taken = sorted(
                (offsets[other], offsets[other] + sizes[other])
                for other in self.rivals[one]
                if offsets[other] >= 0
            )
            size, at = sizes[one], 0
            for begin, end in taken:
                if begin - at >= size:
                    break
                at = max(at, end)
            offsets[one] = at
            top = max(top, at + self.intervals[one].size_bytes)
        return Placement(tuple(offsets), top)

    def _searched(
        self,
        starts: list[tuple[Placement, list[int]]],
        room: int,
        go_on: GoOn,
        rng: Random,
    ) -> Placement:
        """Place what ends above the room earlier, again and again (Joslin and Clements 1999)."""
        best = min((placement for placement, _ in starts), key=lambda one: one.top_bytes)
        for number in count():
            if best.top_bytes <= room or not go_on():
                return best
            if number % _ROUND == 0:
                now, current = starts[number // _ROUND % len(starts)]
            places = [float(place) for place in range(len(current))]
            some = rng.choice((0.3, 1.0))
            for place, one in enumerate(current):
                ends = now.offsets[one] + self.intervals[one].size_bytes
                if ends > room and rng.random() < some:
                    places[place] *= rng.random()
            trial = [current[at] for at in sorted(range(len(current)), key=places.__getitem__)]
            placement = self.put(trial)
            if placement.top_bytes <= now.top_bytes * (1 + 0.01 * rng.random() ** 4):
                current, now = trial, placement
            if placement.top_bytes < best.top_bytes:
                best = placement
        return best
