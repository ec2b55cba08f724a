"""A training step as a row of stages: what runs, and what can be kept, in each.

The forward is cut where few bytes cross. A stage has its part of the forward, and the part of the
backward that reads what it made; the backward runs through the stages from the last to the first.
Of what crosses into a stage (its border) all is kept or nothing.

What is kept within a stage is a choice of a few: at several prices for a byte, what is cheaper to
keep than to make again (`keeping`). The levels are such sets, too, by which a whole row of stages
keeps something while its borders are let go: its forward then runs again faster.

    level 0  nothing has run yet
    level 1  nothing is kept
    level n  what is kept at the price n - 2, and all of the level before

Bytes here are estimates, of each stage by itself; `Schedule` knows what a whole order takes.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from tierline_steps.keeping import kept
from tierline_steps.schedule import Problem

_LEVEL_PRICES = (4.0, 2.0)
"""Of a byte, by the forward's time for each byte of it that the backward reads."""
_CHOICE_PRICES = (0.05, 0.18, 0.65, 2.3, 8.3, 30.0)
_NEAREST, _FARTHEST = 0.4, 1.6
"""Where a cut is looked for, by the length that a stage should have."""

LEVELS = 2 + len(_LEVEL_PRICES)


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of values that one stage keeps from its forward to its backward.

    Its bytes in addition to its level's; the time of the forward and of what runs again in the
    backward; and what the two take at most, without its border and what its level keeps.
    """

    values: AbstractSet[int]
    more_bytes: int
    time_ns: int
    forward_bytes: int
    backward_bytes: int


class Stages:
    """About so many stages of a graph that has a backward."""

    def __init__(self, problem: Problem, count: int) -> None:
        self.problem = problem
        self.loss = problem.graph.backward
        self._last_forward = [
            max((reader for reader in readers if reader < self.loss), default=-1)
            for readers in problem.readers
        ]
        ends = [*self._cuts(count), self.loss]
        self.forwards = [list(range(a, b)) for a, b in pairwise([0, *ends])]
        self.count = len(self.forwards)
        self.borders = [
            frozenset(
                value for value in range(len(problem.sizes)) if self._crosses(value, part[0] - 1)
            )
            for part in self.forwards
        ]
        self.borders.append(frozenset())
        self.border_bytes = [self._bytes(border) for border in self.borders]
        self.backwards = self._backwards()
        self._carry()
        self._keep()

    def order_forward(self, stage: int, level: int, keep: AbstractSet[int]) -> list[int]:
        """What makes the next border and what is to be kept, from the border and the level's."""
        part = self.forwards[stage]
        if level == 0:
            return part
        wanted = self.borders[stage + 1] | keep
        return self._makers(stage, wanted, self.borders[stage] | self.levels[level][stage])

    def order_backward(self, stage: int, keep: AbstractSet[int]) -> list[int]:
        """Its backward, and before each operator what makes again what that reads."""
        there = set(keep | self.borders[stage] | self.borders[stage + 1])
        order: list[int] = []
        for operator in self.backwards[stage]:
            again = self._makers(stage, self.problem.reads[operator], there)
            for other in again:
                there.update(self.problem.writes[other])
            order += [*again, operator]
        return order

    def _makers(self, stage: int, wanted: Iterable[int], there: AbstractSet[int]) -> list[int]:
        problem, part = self.problem, self.forwards[stage]
        found: set[int] = set()
        todo = list(wanted)
        while todo:
            value = todo.pop()
            operator = problem.writer[value]
            if value in there or not part[0] <= operator <= part[-1]:
                continue
            if operator not in found and not problem.once[operator]:
                found.add(operator)
                todo += problem.reads[operator]
        return sorted(found)

    def _cuts(self, count: int) -> list[int]:
        """Where stages end: within reach of an equal share of the time, where least crosses."""
        times = self.problem.times[: self.loss]
        change = [0] * (self.loss + 1)
        for value, size in enumerate(self.problem.sizes):
            if self._crosses(value, self.problem.writer[value]):
                change[self.problem.writer[value]] += size
                change[self._last_forward[value]] -= size
        length = sum(times) / count
        cuts: list[int] = []
        begun = now = 0
        crossing = 0
        best: tuple[int, int, int] | None = None  # bytes, cut, time at its end
        for operator, time_ns in enumerate(times[:-1]):
            now += time_ns
            crossing += change[operator]
            if best is not None and now > begun + _FARTHEST * length:
                cuts.append(best[1] + 1)
                begun, best = best[2], None
            if now >= begun + _NEAREST * length and (best is None or crossing < best[0]):
                best = crossing, operator, now
        return cuts

    def _crosses(self, value: int, operator: int) -> bool:
        """Whether the forward makes it up to an operator, and reads it after that."""
        writer = self.problem.writer[value]
        return 0 <= writer <= operator < self._last_forward[value] and not self.problem.once[writer]

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(self.problem.sizes[value] for value in values)

    def _backwards(self) -> list[list[int]]:
        """In the graph's order: each with the stage whose values it reads, or one before."""
        problem = self.problem
        stage_of = {one: stage for stage, part in enumerate(self.forwards) for one in part}
        parts: list[list[int]] = [[] for _ in self.forwards]
        now = self.count - 1
        for operator in range(self.loss, len(problem.times)):
            for value in problem.reads[operator]:
                stage = stage_of.get(problem.writer[value])
                if stage is not None and not problem.once[problem.writer[value]]:
                    while now > stage and value not in self.borders[now]:
                        now -= 1
            parts[now].append(operator)
        return parts

    def _carry(self) -> None:
        """The values that the backward of later stages leaves: for others, and for the program."""
        problem = self.problem
        stage_of = {one: stage for stage, part in enumerate(self.backwards) for one in part}
        self.carried: list[set[int]] = [set() for _ in range(self.count + 1)]
        self.gone_bytes = [0] * (self.count + 1)
        always = 0
        for value, stays in enumerate(problem.live_out):
            writer = problem.writer[value]
            if 0 <= writer < self.loss:
                always += problem.sizes[value] * stays
            elif writer >= 0 and stays:
                self.gone_bytes[stage_of[writer]] += problem.sizes[value]
            elif writer >= 0:
                first = min((stage_of[one] for one in problem.readers[value]), default=self.count)
                for stage in range(first + 1, stage_of[writer] + 1):
                    self.carried[stage].add(value)
        for stage in reversed(range(self.count)):
            self.gone_bytes[stage] += self.gone_bytes[stage + 1]
        self.gone_bytes = [always + one for one in self.gone_bytes]
        self.carried_bytes = [self._bytes(values) for values in self.carried]

    def _keep(self) -> None:
        read = [
            {value for one in part for value in self.problem.reads[one]} for part in self.backwards
        ]
        made = [
            {value for one in part for value in self.problem.writes[one]} for part in self.forwards
        ]
        needed = self._bytes(v for a, b in zip(read, made, strict=True) for v in a & b)
        unit = sum(self.problem.times[: self.loss]) / max(1, needed)
        known: dict[object, list[list[int]]] = {}
        self.levels: list[list[frozenset[int]]] = [[] for _ in range(LEVELS)]
        self._sets: list[list[frozenset[int]]] = []
        for stage in range(self.count):
            here = sorted(made[stage])
            sets = self._similar(known, stage, here, read[stage], unit)
            for level in range(2):
                self.levels[level].append(frozenset())
            for level in range(2, LEVELS):
                self.levels[level].append(self.levels[level - 1][stage] | sets[level - 2])
            self._sets.append(list(dict.fromkeys(sets[LEVELS - 2 :])))
        self.level_bytes = [[self._bytes(values) for values in level] for level in self.levels]
        self.choices = [
            [self._choices(level, stage) for stage in range(self.count)] for level in range(LEVELS)
        ]

    def _similar(
        self,
        known: dict[object, list[list[int]]],
        stage: int,
        here: Sequence[int],
        read: AbstractSet[int],
        unit: float,
    ) -> list[frozenset[int]]:
        """The choices of a stage; those of one which is like it in all that matters are known."""
        problem, part = self.problem, self.forwards[stage]
        at = {value: index for index, value in enumerate(here)}
        border = self.borders[stage + 1]
        looks = tuple(
            (
                problem.times[one],
                problem.once[one],
                tuple(at.get(value, -1) for value in problem.reads[one]),
                tuple(
                    (problem.sizes[value], value in read, value in border)
                    for value in problem.writes[one]
                ),
            )
            for one in part
        )
        if looks not in known:
            wanted = [value for value in here if value in read and value not in border]
            passed = border & at.keys()
            sets = [
                kept(problem, part, {*wanted, *passed}, (), passed, unit * price)
                for price in _LEVEL_PRICES
            ]
            sets += [frozenset(v for v in wanted if not problem.once[problem.writer[v]])]
            sets += [kept(problem, part, wanted, border, (), unit * p) for p in _CHOICE_PRICES]
            sets += [frozenset()]
            known[looks] = [[at[value] for value in values] for values in sets]
        return [frozenset(here[index] for index in found) for found in known[looks]]

    def _choices(self, level: int, stage: int) -> list[Choice]:
        times = self.problem.times
        held = self.levels[level][stage]
        found = []
        for values in self._sets[stage]:
            keep = values | held
            forward = self.order_forward(stage, level, keep)
            backward = self.order_backward(stage, keep)
            time_ns = sum(times[one] for one in forward)
            time_ns += sum(times[one] for one in backward if one < self.loss)
            found.append(
                Choice(
                    keep,
                    self._bytes(keep - held),
                    time_ns,
                    self.forward_bytes(stage, level, keep, forward),
                    self._backward_bytes(stage, level, keep, backward),
                )
            )
        return found

    def forward_bytes(
        self, stage: int, level: int, keep: AbstractSet[int], order: Sequence[int]
    ) -> int:
        """The most that its forward takes in addition to its border and its level's values."""
        outside = self.borders[stage] | self.levels[level][stage]
        return self._most(order, set(), keep | self.borders[stage + 1], outside)

    def _backward_bytes(
        self, stage: int, level: int, keep: AbstractSet[int], order: Sequence[int]
    ) -> int:
        outside = self.borders[stage] | self.levels[level][stage]
        read = {value for one in order for value in self.problem.reads[one]}
        there = (keep | self.borders[stage + 1] & read | self.carried[stage + 1]) - outside
        return self._most(order, there, self.carried[stage], outside)

    def _most(
        self,
        order: Sequence[int],
        there: AbstractSet[int],
        stays: AbstractSet[int],
        outside: AbstractSet[int],
    ) -> int:
        problem = self.problem
        last = {value: step for step, one in enumerate(order) for value in problem.reads[one]}
        live = set(there)
        used = most = self._bytes(live)
        for step, one in enumerate(order):
            for value in problem.writes[one]:
                if value not in live and value not in outside:
                    live.add(value)
                    used += problem.sizes[value]
            most = max(most, used + problem.workspaces[one])
            for value in (*problem.reads[one], *problem.writes[one]):
                spent = last.get(value, -1) <= step and value not in stays
                if spent and value in live and not problem.live_out[value]:
                    live.remove(value)
                    used -= problem.sizes[value]
        return most
