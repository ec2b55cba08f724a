"""The fastest way through a row of stages within some memory: a table, and the orders it holds.

For a row of stages [first, end) at a level (`stages`), with its first border and what its level
keeps held outside of the memory that is asked for, there are two ways.

1. Run the first stage's forward, keep one of its choices and the next border; do the rest of the
   row; run the first stage's backward.
2. Run the forward up to a middle, keep that border, and of the stages before it what another level
   keeps; do the row from the middle on; do the row up to the middle at that level.

The table has the least time for each row, level and number of slots of memory, which is what a
chain's optimum has in Griewank and Walther (2000) and Beaumont et al. (2019), with levels. Live-out
values of the backward count from when they are made. Sizes are rounded to slots, up or down: an
order may take a little more or less than it was asked for.
"""

from dataclasses import dataclass
from itertools import accumulate

from tierline_steps.stages import LEVELS, Stages

_NEVER = float("inf")

Way = tuple[int, int]
"""(-1, a choice) of the first stage, or (the middle, the level of the stages before it)."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """The forward from one level to another, stage by stage."""

    times: list[int]  # from the first stage on
    most_bytes: list[int]


def _rounding(stages: Stages, unit: float) -> float:
    """How far off all sizes together are in slots of so many bytes."""
    sizes = [*stages.border_bytes, *(one for level in stages.level_bytes for one in level)]
    return sum(abs(size - unit * round(size / unit)) for size in sizes) if unit else 0.0


class Sweeps:
    """All rows of the stages, for up to so many bytes in so many slots."""

    def __init__(self, stages: Stages, most_bytes: int, slots: int) -> None:
        self.stages = stages
        self.slots = min(
            range(slots, 2 * slots), key=lambda one: _rounding(stages, most_bytes / one)
        )
        self.unit = max(1.0, most_bytes / self.slots)
        self._level_bytes = [[0, *accumulate(level)] for level in stages.level_bytes]
        self._borders = [self._slot(size) for size in stages.border_bytes]
        self._passes = {
            (level, other): self._passed(level, other)
            for level in range(LEVELS)
            for other in range(max(level, 1), LEVELS)
        }
        self._times: dict[tuple[int, int, int], list[float]] = {}
        self._ways: dict[tuple[int, int, int], list[Way]] = {}
        for length in range(1, stages.count + 1):
            for first in range(stages.count - length + 1):
                end = first + length
                for level in range(0 if end == stages.count else 1, LEVELS):
                    self._fill(level, first, end)

    def order(self, most_bytes: int) -> list[int] | None:
        """Operators with repetitions, which take about so many bytes; None if there are none."""
        stages = self.stages
        slot = min(self._slot(most_bytes), self.slots)
        if self._times[0, 0, stages.count][slot] == _NEVER:
            return None
        found: list[int] = []
        todo: list[list[int] | tuple[int, int, int, int]] = [(0, 0, stages.count, slot)]
        while todo:
            row = todo.pop()
            if isinstance(row, list):
                found += row
                continue
            level, first, end, slot = row
            middle, chosen = self._ways[level, first, end][min(slot, self.slots)]
            if middle < 0:
                choice = stages.choices[level][first][chosen]
                todo.append(stages.order_backward(first, choice.values))
                if end > first + 1:
                    left = slot - self._slot(choice.more_bytes) - self._borders[first + 1]
                    todo.append((level, first + 1, end, left))
                todo.append(stages.order_forward(first, level, choice.values))
            else:
                before, after = self._taken(level, chosen, first, middle, end)
                todo.append((chosen, first, middle, slot - before))
                todo.append((level, middle, end, slot - after))
                keeps = stages.levels[chosen]
                todo += [
                    stages.order_forward(stage, level, keeps[stage])
                    for stage in reversed(range(first, middle))
                ]
        return self._once(found)

    def _once(self, order: list[int]) -> list[int]:
        once = self.stages.problem.once
        ran: set[int] = set()
        found = []
        for operator in order:
            if not once[operator] or operator not in ran:
                found.append(operator)
                ran.add(operator)
        return found

    def _slot(self, size_bytes: int) -> int:
        return round(size_bytes / self.unit)

    def _passed(self, level: int, other: int) -> _Pass:
        stages = self.stages
        times, most = [0], []
        for stage in range(stages.count):
            keep = stages.levels[other][stage]
            order = stages.order_forward(stage, level, keep)
            times.append(times[-1] + sum(stages.problem.times[one] for one in order))
            most.append(stages.forward_bytes(stage, level, keep, order))
        return _Pass(times, most)

    def _more(self, level: int, other: int, first: int, end: int) -> int:
        """Bytes that the other level keeps of a row in addition."""
        now, then = self._level_bytes[level], self._level_bytes[other]
        return then[end] - then[first] - (now[end] - now[first])

    def _taken(self, level: int, other: int, first: int, middle: int, end: int) -> tuple[int, int]:
        """Slots that the rows before and after the middle have less than the whole."""
        kept = self._more(level, other, first, middle)
        freed = self._level_bytes[level][end] - self._level_bytes[level][middle]
        return self._slot(kept - freed), self._borders[middle] + self._slot(kept)

    def _fill(self, level: int, first: int, end: int) -> None:
        times = [_NEVER] * (self.slots + 1)
        ways: list[Way] = [(-1, 0)] * (self.slots + 1)
        self._times[level, first, end], self._ways[level, first, end] = times, ways
        stages = self.stages
        held = stages.carried_bytes[end] + stages.gone_bytes[end]
        freed = self._level_bytes[level][end] - self._level_bytes[level][first + 1]
        for number, choice in enumerate(stages.choices[level][first]):
            backward = choice.backward_bytes + stages.gone_bytes[first + 1] - freed
            least = self._slot(max(backward, choice.forward_bytes + held))
            way = (-1, number)
            if end == first + 1:
                self._take(times, ways, way, max(least, 0), choice.time_ns, None, None)
                continue
            taken = self._slot(choice.more_bytes) + self._borders[first + 1]
            after = (self._times[level, first + 1, end], taken)
            self._take(times, ways, way, max(least, taken), choice.time_ns, after, None)
        for other in range(max(level, 1), LEVELS):
            self._split(level, other, first, end)

    def _split(self, level: int, other: int, first: int, end: int) -> None:
        """The second way, for all middles."""
        stages, passed = self.stages, self._passes[level, other]
        times, ways = self._times[level, first, end], self._ways[level, first, end]
        held = stages.carried_bytes[end] + stages.gone_bytes[end]
        most = 0
        for middle in range(first + 1, end):
            stage = middle - 1
            border = stages.border_bytes[stage] if stage > first else 0
            kept = self._more(level, other, first, stage)
            most = max(most, passed.most_bytes[stage] + border + kept + held)
            before, after = self._taken(level, other, first, middle, end)
            self._take(
                times,
                ways,
                (middle, other),
                max(self._slot(most), before, after, 0),
                passed.times[middle] - passed.times[first],
                (self._times[level, middle, end], after),
                (self._times[other, first, middle], before),
            )

    def _take(
        self,
        times: list[float],
        ways: list[Way],
        way: Way,
        least: int,
        time_ns: int,
        one: tuple[list[float], int] | None,
        other: tuple[list[float], int] | None,
    ) -> None:
        """Take a way wherever it is faster: `least` slots on, with the times of up to two rows."""
        top = self.slots
        for slot in range(least, top + 1):
            time = float(time_ns)
            if one is not None:
                time += one[0][slot - one[1]]
            if other is not None:
                time += other[0][min(slot - other[1], top)]
            if time < times[slot]:
                times[slot], ways[slot] = time, way
