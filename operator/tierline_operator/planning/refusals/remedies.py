"""The smallest single change of a deadline or period that would let a refused set hold.

Costs stay those of the nearest plan, which fits the memory, so a change that the exact test accepts
here is proven, not guessed. Changes are tried in the order in which they ask least of a user: the
deadline of a late task, then one task's period, then leaving one task out.

What it does not do: change memory (planner.py says what memory would be enough).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from tierline_operator.admission.demand import (
    DemandTest,
    SporadicTask,
    cost_ns,
    instant_ns,
)

LONGEST_FACTOR = 8
MOST_TRIED = 24
"""Of how many tasks longer periods are tried."""
EFFORT: Final = 40_000_000
"""Deadlines that are looked at for one advice, or what takes as long: half a second or so."""
_POINTS, _STEPS = 100_000, 1_000
"""Of one test. Where that is not enough the set is too close to what it may be to be advised."""
_WINDOWS = 1_000
_ROUNDING = 1e-9
LATEST = 1 << 62
"""A period more than so many times longer is no advice."""


@dataclass(frozen=True)
class Remedy:
    """Change `what` of task `index` to `value_s` seconds, or leave the task out."""

    what: Literal["deadline", "period", "removal"]
    index: int
    value_s: float = 0.0


@dataclass(frozen=True)
class Advice:
    """The remedy that was found."""

    remedy: Remedy | None
    """A change after which the test accepts; None if there was none among those tried."""
    all_tried: bool
    """Whether that took no longer than it may."""


def find_remedy(
    tasks: Sequence[SporadicTask],
    victims: Sequence[int],
    blocker: int | None = None,
    *,
    implicit: Collection[int] = (),
    preemptible: Collection[int] = (),
    late_s: Mapping[int, float] = MappingProxyType({}),
) -> Advice:
    """A change after which the demand test accepts, if a single one is found.

    Rows of one name are one task's, which leaves with all of them. Deadlines of `implicit` tasks
    are their periods, and move with these. A `preemptible` task with a longer deadline would charge
    others more than it does now: no deadline of one is moved, and not all is tried then. Jobs of
    some tasks ask for the device `late_s` after their release: a row has what is left of its
    deadline then, and a remedy names the deadline as a user writes it, from the release.
    """
    able = _whose_absence_helps(tasks)
    tests = _Tests(tasks)
    for index in victims:
        left_s, late = tasks[index].deadline_s, late_s.get(index, 0.0)
        if left_s is None or index in preemptible or index not in able:
            continue
        period_s = tasks[index].period_s
        value = _least(tests, tasks[index], index, left_s + late, period_s, _with_deadline(late))
        if value is not None:
            return Advice(Remedy("deadline", index, value), all_tried=True)
    longer: Remedy | None = None
    factor = float(LONGEST_FACTOR)
    passed_over = False
    for index in sorted(able[:MOST_TRIED]):
        task = tasks[index]
        if task.deadline_s is not None and index in implicit and index in preemptible:
            passed_over = True
            continue
        if task.deadline_s is None:
            continue
        change = _with_both(late_s.get(index, 0.0)) if index in implicit else _with_period
        # Only one that asks less than the best so far is worth finding.
        value = _least(tests, task, index, task.period_s, task.period_s * factor, change)
        if value is not None and value < task.period_s * factor:
            factor, longer = value / task.period_s, Remedy("period", index, value)
    if longer:
        return Advice(longer, all_tried=True)
    loads = [task.cost_s / task.period_s for task in tasks]
    for index in sorted(able, key=lambda i: (i != blocker, -loads[i], i))[:MOST_TRIED]:
        if tests.hold_without(tasks[index].name):
            return Advice(Remedy("removal", index), all_tried=True)
    all_tried = tests.left > 0 and len(able) <= MOST_TRIED and not passed_over
    return Advice(None, all_tried=all_tried)


class _Tests:
    """The demand test of a set with one change after another.

    Most changes are not enough for a window that others were not enough for either, so windows that
    were late are looked at first. All that is looked at is counted.
    """

    def __init__(self, tasks: Sequence[SporadicTask]) -> None:
        self.left = EFFORT
        self._names = [task.name for task in tasks]
        self._rows = [_row(task) for task in tasks]
        self._late: list[int] = []

    def hold(self, index: int, changed: SporadicTask) -> bool:
        """Whether all deadlines are proven with that task in place of its number."""
        return self._test([*self._rows[:index], _row(changed), *self._rows[index + 1 :]])

    def hold_without(self, name: str) -> bool:
        """Whether all deadlines of the others are proven."""
        rows = zip(self._names, self._rows, strict=True)
        rest = [row for other, row in rows if other != name]
        return bool(rest) and self._test(rest)

    def _test(self, rows: Sequence[tuple[int, int, int, int]]) -> bool:
        if self.left <= 0:
            return False
        background = max((section for *_, limit, section in rows if limit == LATEST), default=0)
        due = np.array([row for row in rows if row[2] != LATEST], np.int64).reshape(-1, 4)
        periods, costs, limits, sections = due.T
        if float((costs / periods).sum()) > 1 + _ROUNDING:
            return False
        windows = np.array(self._late, np.int64)[:, None]
        jobs = np.maximum((windows - limits) // periods + 1, 0)
        blocked = np.where(limits > windows, sections, background).max(axis=1, initial=background)
        if (jobs @ costs + blocked > windows[:, 0]).any():
            return False
        test = DemandTest(periods.tolist(), limits.tolist(), most_points=_POINTS, most_steps=_STEPS)
        kind, _, critical, _ = test.worst(costs.tolist(), sections.tolist(), background)
        self.left -= test.work
        if kind == "late":
            self._late.append(critical)
        return kind == "holds"


def _row(task: SporadicTask) -> tuple[int, int, int, int]:
    """Period, cost, deadline and section, nanoseconds."""
    limit_s, section_s = task.deadline_s, task.section_s
    return (
        instant_ns(task.period_s),
        cost_ns(task.cost_s),
        LATEST if limit_s is None else instant_ns(limit_s),
        cost_ns(task.cost_s if section_s is None else section_s),
    )


def _whose_absence_helps(tasks: Sequence[SporadicTask]) -> list[int]:
    """Each task without which none of many windows is late; those with the largest jobs first.

    A task that is not among them has no change that would be enough: later or rarer jobs demand no
    less than none.
    """
    due = [index for index, task in enumerate(tasks) if task.deadline_s is not None]
    if not due:
        return []
    deadlines = [instant_ns(tasks[i].deadline_s or 0.0) for i in due]
    periods = [instant_ns(tasks[i].period_s) for i in due]
    test = DemandTest(periods, deadlines)
    windows = test.windows(_WINDOWS)
    jobs = test.jobs_due_in(windows)
    costs = np.array([cost_ns(tasks[i].cost_s) for i in due], dtype=np.int64)
    demand = jobs @ costs
    after = windows[:, None] - np.array(deadlines)
    ending = (after >= 0) & (after % np.array(periods) == 0)
    shared = ending.sum(axis=1)
    sections = [cost_ns(t.cost_s if t.section_s is None else t.section_s) for t in tasks]
    load = sum(tasks[i].cost_s / tasks[i].period_s for i in due)
    limits = dict(zip(due, deadlines, strict=True))
    order = sorted(range(len(tasks)), key=lambda i: -limits.get(i, LATEST))
    reached = np.array([-limits.get(i, LATEST) for i in order])
    longest = _two_longest(order, sections)
    blocking = np.array(longest)[np.searchsorted(reached, -windows, side="left")]
    helping = []
    for index in range(len(tasks)):
        late = demand + np.where(blocking[:, 1] == index, blocking[:, 2], blocking[:, 0]) - windows
        rest = load
        if index in limits:
            column = due.index(index)
            late = late - jobs[:, column] * costs[column]
            late = late[shared > ending[:, column]]  # the others' windows
            rest -= tasks[index].cost_s / tasks[index].period_s
        if late.max(initial=0) <= 0 and rest <= 1 + _ROUNDING:
            helping.append(index)
    return sorted(helping, key=lambda i: -tasks[i].cost_s)


def _two_longest(order: Sequence[int], sections: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of the first tasks in that order, for each number of them: the longest section, the task
    that has it, and the longest of another one."""
    found = [(0, -1, 0)]
    for index in order:
        most, whose, second = found[-1]
        longer = sections[index] > most
        found.append(
            (sections[index], index, most)
            if longer
            else (most, whose, max(second, sections[index]))
        )
    return found


Change = Callable[[SporadicTask, float], SporadicTask]


def _with_deadline(late_s: float) -> Change:
    return lambda task, seconds: replace(task, deadline_s=min(seconds, task.period_s) - late_s)


def _with_period(task: SporadicTask, seconds: float) -> SporadicTask:
    return replace(task, period_s=seconds)


def _with_both(late_s: float) -> Change:
    return lambda task, seconds: replace(task, period_s=seconds, deadline_s=seconds - late_s)


def _least(
    tests: _Tests,
    task: SporadicTask,
    index: int,
    now_s: float,
    most_s: float,
    change: Change,
) -> float | None:
    """The least value in steps of three digits for which the set holds, by bisection."""
    step = 10.0 ** (math.floor(math.log10(now_s)) - 2)

    def holds(steps: int) -> bool:
        return tests.hold(index, change(task, min(steps * step, most_s)))

    low, high = math.floor(now_s / step), math.ceil(most_s / step - 1e-9)
    if high <= low or not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return min(high * step, most_s)
