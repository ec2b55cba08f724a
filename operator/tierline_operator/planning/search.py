"""Choosing resident sets for all tasks at given rings: memory where it helps the failing window.

The search starts with as little memory as possible, asks the exact test for the window that fails
worst, and gives memory to the task whose job time falls most per extent *in that window* (weighted
by its jobs due there, and once more for the blocker), again and again until the test accepts or
nothing helps. Job time over memory is close to convex, so this comes near the linear-programming
bound (realtime theory notes, section 2: 96 against 99 of 150 sets). Two more starts catch what it
misses: filling by gain in utilisation first, and making the m shortest deadlines fully resident.

A heuristic finds, it does not prove: whatever it returns as holding has passed the test.
Invariant: `used` never exceeds `limit`, in extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tierline_operator.admission.demand import DemandTest, Kind
from tierline_operator.planning.options import Option, Task

LOOK_AHEAD = 6
"""Points further up a curve that one move may reach, besides its end: curves have flat parts."""
MAX_MOVES = 4000


@dataclass
class Outcome:
    """Where a search ended."""

    chosen: list[int]
    used: int
    kind: Kind
    late_ns: int
    critical_ns: int
    blocker: int | None
    """Index of the blocking task."""

    @property
    def ok(self) -> bool:
        """Whether every deadline holds with these choices."""
        return self.kind == "holds"


class Search:
    """Resident sets for fixed rings."""

    def __init__(self, tasks: Sequence[Task], rings: dict[str, int], test: DemandTest) -> None:
        """`test` has one entry per guaranteed task, in order."""
        self.tasks = tasks
        self.test = test
        self.options: list[list[Option]] = [
            task.options(rings.get(task.demand.domain, 0)) for task in tasks
        ]
        self.due = [index for index, task in enumerate(tasks) if task.guaranteed]
        self.idle = [index for index, task in enumerate(tasks) if not task.guaranteed]

    def least(self) -> int:
        """Extents that the smallest choice of every task takes."""
        return sum(options[0].extents for options in self.options)

    def run(self, limit: int) -> Outcome | None:
        """The first start that holds, or else the one that came nearest; None if nothing fits."""
        if self.least() > limit:
            return None
        best: Outcome | None = None
        for start in self._starts(limit):
            outcome = self._improve(start, limit)
            if best is None or outcome.ok or outcome.late_ns < best.late_ns:
                best = outcome
            if best.ok:
                break
        return best

    def judge(self, chosen: list[int]) -> Outcome:
        """What the exact test says of these choices."""
        picked = [options[at] for options, at in zip(self.options, chosen, strict=True)]
        lower = max(self.idle, key=lambda index: picked[index].section_ns, default=None)
        kind, late, critical, blocker = self.test.worst(
            [picked[index].cost_ns for index in self.due],
            [picked[index].section_ns for index in self.due],
            0 if lower is None else picked[lower].section_ns,
        )
        if blocker is not None:
            blocker = lower if blocker < 0 else self.due[blocker]
        used = sum(option.extents for option in picked)
        return Outcome(chosen, used, kind, late, critical, blocker)

    def fill(
        self, chosen: list[int], limit: int, takes: Callable[[Task], bool] = lambda _: True
    ) -> list[int]:
        """Give what is left by gain in utilisation per extent."""
        weights = [1.0 / task.period_ns if takes(task) else 0.0 for task in self.tasks]
        chosen = list(chosen)
        used = self._used(chosen)
        for _ in range(MAX_MOVES):
            move = self._best_move(chosen, limit - used, weights)
            if move is None:
                break
            index, target = move
            used += self.options[index][target].extents - self.options[index][chosen[index]].extents
            chosen[index] = target
        return chosen

    def shed(self, chosen: Sequence[int], gives: Callable[[Task], bool]) -> list[int]:
        """Take memory back from such tasks, one after another, as far as the test still holds.

        `chosen` must hold. Job time falls along a curve and the test is sustainable, so what holds
        with some memory holds with more, and bisection finds the least.
        """
        chosen = list(chosen)
        for index, task in enumerate(self.tasks):
            low, high = 0, chosen[index]
            while gives(task) and low < high:
                chosen[index] = (low + high) // 2
                if self.judge(chosen).ok:
                    high = chosen[index]
                else:
                    low = chosen[index] + 1
            chosen[index] = high
        return chosen

    def _starts(self, limit: int) -> Sequence[list[int]]:
        nothing = [0] * len(self.tasks)
        starts = [nothing, self.fill(nothing, limit)]
        urgent = list(nothing)
        for index in sorted(self.due, key=lambda index: self.tasks[index].deadline_ns):
            urgent[index] = len(self.options[index]) - 1
            if self._used(urgent) > limit:
                break
            starts.append(list(urgent))
        return starts

    def _improve(self, chosen: list[int], limit: int) -> Outcome:
        chosen = list(chosen)
        outcome = self.judge(chosen)
        for _ in range(MAX_MOVES):
            if outcome.ok:
                return outcome
            move = self._best_move(chosen, limit - outcome.used, self._weights(outcome))
            if move is None:
                break
            chosen[move[0]] = move[1]
            outcome = self.judge(chosen)
        filled = self.judge(self.fill(chosen, limit))
        return filled if filled.ok or filled.late_ns < outcome.late_ns else outcome

    def _weights(self, outcome: Outcome) -> list[float]:
        """How much a second of each task's job time weighs in the failing window."""
        if outcome.kind != "late":
            return [1.0 / task.period_ns if task.guaranteed else 0.0 for task in self.tasks]
        weights = [0.0] * len(self.tasks)
        for index, jobs in zip(self.due, self.test.jobs_due(outcome.critical_ns), strict=True):
            weights[index] = float(jobs)
        if outcome.blocker is not None:
            weights[outcome.blocker] += 1.0
        return weights

    def _best_move(
        self, chosen: Sequence[int], room: int, weights: Sequence[float]
    ) -> tuple[int, int] | None:
        best = 0.0
        found: tuple[int, int] | None = None
        for index, weight in enumerate(weights):
            options = self.options[index]
            at = chosen[index]
            if weight <= 0 or at + 1 >= len(options):
                continue
            here = options[at]
            for target in _targets(at, len(options) - 1):
                there = options[target]
                taken = there.extents - here.extents
                if taken > room:
                    continue
                gain = weight * (here.section_ns - there.section_ns) / taken
                if gain > best:
                    best, found = gain, (index, target)
        return found

    def _used(self, chosen: Sequence[int]) -> int:
        return sum(options[at].extents for options, at in zip(self.options, chosen, strict=True))


def _targets(at: int, last: int) -> Sequence[int]:
    near = range(at + 1, min(at + LOOK_AHEAD, last) + 1)
    return near if near[-1] == last else (*near, last)
