"""The smallest single change of a deadline or period that would let a refused set hold.

Costs stay those of the nearest plan, which fits the memory, so a change that the exact test accepts
here is proven, not guessed. Changes are tried in the order in which they ask least of a user: the
deadline of a late task, then one task's period, then leaving one task out.

What it does not do: change memory (planner.py says what memory would be enough).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tierline_operator.admission.demand import SporadicTask, np_edf

LONGEST_FACTOR = 8
"""A period more than so many times longer is no advice."""


@dataclass(frozen=True)
class Remedy:
    """Change `what` of task `index` to `value_s` seconds, or leave the task out."""

    what: Literal["deadline", "period", "removal"]
    index: int
    value_s: float = 0.0


def find_remedy(
    tasks: Sequence[SporadicTask],
    victims: Sequence[int],
    blocker: int | None = None,
    *,
    implicit: Collection[int] = (),
    preemptible: Collection[int] = (),
) -> Remedy | None:
    """A change after which np_edf accepts, or None if no single one was found.

    Deadlines of `implicit` tasks are their periods, and move with these. A `preemptible` task with
    a longer deadline would charge others more than it does now: no deadline of one is moved.
    """
    for index in victims:
        deadline_s, period_s = tasks[index].deadline_s, tasks[index].period_s
        if deadline_s is None or index in preemptible:
            continue
        value = _least(tasks, index, deadline_s, period_s, _with_deadline)
        if value is not None:
            return Remedy("deadline", index, value)
    longer: list[tuple[float, Remedy]] = []
    for index, task in enumerate(tasks):
        if task.deadline_s is None or (index in implicit and index in preemptible):
            continue
        change = _with_both if index in implicit else _with_period
        value = _least(tasks, index, task.period_s, task.period_s * LONGEST_FACTOR, change)
        if value is not None:
            longer.append((value / task.period_s, Remedy("period", index, value)))
    if longer:
        return min(longer, key=lambda pair: pair[0])[1]
    loads = [task.cost_s / task.period_s for task in tasks]
    for index in sorted(range(len(tasks)), key=lambda i: (i != blocker, -loads[i])):
        rest = [task for other, task in enumerate(tasks) if other != index]
        if rest and np_edf(rest).ok:
            return Remedy("removal", index)
    return None


def _with_deadline(task: SporadicTask, seconds: float) -> SporadicTask:
    return replace(task, deadline_s=min(seconds, task.period_s))


def _with_period(task: SporadicTask, seconds: float) -> SporadicTask:
    return replace(task, period_s=seconds)


def _with_both(task: SporadicTask, seconds: float) -> SporadicTask:
    return replace(task, period_s=seconds, deadline_s=seconds)


def _least(
    tasks: Sequence[SporadicTask],
    index: int,
    now_s: float,
    most_s: float,
    change: Callable[[SporadicTask, float], SporadicTask],
) -> float | None:
    """The least value in steps of three digits for which the set holds, by bisection."""
    step = 10.0 ** (math.floor(math.log10(now_s)) - 2)

    def holds(steps: int) -> bool:
        value = min(steps * step, most_s)
        changed = [change(t, value) if i == index else t for i, t in enumerate(tasks)]
        return np_edf(changed).ok

    low, high = math.floor(now_s / step), math.ceil(most_s / step - 1e-9)
    if high <= low or not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return min(high * step, most_s)
