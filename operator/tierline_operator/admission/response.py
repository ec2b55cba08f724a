"""How late can a job of each task be, at worst, under non-preemptive EDF?

Theorem (Prosa `results/rta/ideal/edf/fully_nonpreemptive.v`, machine-checked; after Spuri 1996 and
George, Rivierre, Spuri 1996), in whole nanoseconds, epsilon = 1 ns: for each offset A of the job in
the longest busy window let F be the least solution of

    A + F = B(A) + rbf_i(A + eps) - tail_i + sum_{o != i} rbf_o(min(A + eps + D_i - D_o, A + F))
    rbf_o(x) = ceil(x / T_o) C_o for x > 0, else 0;   B(A) = max{ q_o - eps : D_o > D_i + A };

then R_i = max over A of F + tail_i. tail_i = C_i - eps for a job that runs to its end once started;
for one with preemption points it is 0, which is safe. Only the A at which a term changes matter.

The bound holds for every sporadic arrival pattern under the assumptions of demand.py, and
R_i <= D_i for every i exactly when that test accepts. Tasks without a deadline only block.

Of many tasks that takes too long. Then the test itself says nearly as much: in a window that ends
when a job is due, t after it began, h(t) + B(t) is done before the job ends at the latest. So

    R_i <= D_i - min { t - h(t) - B(t) : t >= D_i },

looked at up to the end of the longest busy window and the longest deadline; and no response is
longer than that window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tierline_operator.admission.demand import (
    MAX_POINTS,
    NS,
    SporadicTask,
    cost_ns,
    instant_ns,
    np_edf,
)

MAX_OFFSETS: Final = 20_000
"""Offsets examined for one task; with more, its deadline is the answer (the test proved it)."""
EXACT: Final = 20_000_000
"""As many terms of the equation take half a second; of more, all bounds come from one pass."""


def worst_responses(tasks: Sequence[SporadicTask]) -> list[float | None]:
    """Worst response of each task in seconds; None where there is no bound.

    There is none for a task without a deadline, nor for any task of a set that np_edf refuses.
    """
    if not np_edf(tasks).ok:
        return [None] * len(tasks)
    due = [task for task in tasks if task.deadline_s is not None]
    background = max((_section(task) for task in tasks if task.deadline_s is None), default=0)
    bounds = iter(_Window(due, background).responses())
    return [None if task.deadline_s is None else next(bounds) / NS for task in tasks]


class _Window:
    """The longest busy window of a set that passed the test, nanoseconds."""

    def __init__(self, tasks: Sequence[SporadicTask], background: int) -> None:
        self.periods = [instant_ns(task.period_s) for task in tasks]
        self.deadlines = [instant_ns(task.deadline_s or 0.0) for task in tasks]
        self.costs = [cost_ns(task.cost_s) for task in tasks]
        self.sections = [_section(task) for task in tasks]
        self.background = background
        self.length = self._busy_length()
        self._left = EXACT

    def responses(self) -> list[int]:
        """A bound for each task."""
        offsets = sum(self.length // period + 1 for period in self.periods)
        if offsets > MAX_OFFSETS:
            return self.deadlines
        bounds: list[int] = []
        for index in range(len(self.periods)):
            bound = self.response(index)
            if bound is None:
                return self.together()
            bounds.append(bound)
        return bounds

    def together(self) -> list[int]:
        """Bounds for all tasks from one pass over their deadlines; never below `response`."""
        reach = max(self.deadlines) + self.length
        rows = list(zip(self.periods, self.deadlines, self.costs, strict=True))
        if sum(reach // period + 1 for period in self.periods) > MAX_POINTS:
            return self.deadlines
        parts = [np.arange(limit, reach + 1, period, dtype=np.int64) for period, limit, _ in rows]
        ends = np.unique(np.concatenate(parts))
        spent = np.full(len(ends), max(0, self.background - 1), dtype=np.int64)
        for limit, section in zip(self.deadlines, self.sections, strict=True):
            later = spent[: np.searchsorted(ends, limit)]
            np.maximum(later, section - 1, out=later)
        for period, limit, cost in rows:
            first = np.searchsorted(ends, limit)
            spent[first:] += ((ends[first:] - limit) // period + 1) * cost
        left = np.minimum.accumulate((ends - spent)[::-1])[::-1]
        return [
            min(limit - int(left[np.searchsorted(ends, limit)]), self.length)
            for limit in self.deadlines
        ]

    def response(self, index: int) -> int | None:
        """The exact bound of one task; None if all of them take too long."""
        offsets = self._offsets(index)
        own_deadline, cost = self.deadlines[index], self.costs[index]
        tail = cost - 1 if self.sections[index] >= cost else 0
        fixed = self._blocking(index, offsets) - tail
        fixed += (offsets // self.periods[index] + 1) * cost
        finish = np.maximum(fixed, 0)
        # Finishing times only grow and are bounded by offset + deadline: the set passed the test.
        while self._left > 0:
            self._left -= len(self.periods) * len(offsets)
            grown = fixed.copy()
            for other, (period, limit) in enumerate(zip(self.periods, self.deadlines, strict=True)):
                if other == index:
                    continue
                reach = np.minimum(offsets + 1 + own_deadline - limit, finish)
                grown += np.where(reach > 0, -(-reach // period), 0) * self.costs[other]
            if np.array_equal(grown, finish):
                return int(np.max(finish - offsets)) + tail
            finish = np.maximum(grown, finish)
        return None

    def _blocking(self, index: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        blocking = np.full(len(offsets), max(0, self.background - 1), dtype=np.int64)
        for other, (limit, section) in enumerate(zip(self.deadlines, self.sections, strict=True)):
            if other == index:
                continue
            later = limit > self.deadlines[index] + offsets
            blocking = np.maximum(blocking, np.where(later, section - 1, 0))
        return blocking

    def _offsets(self, index: int) -> npt.NDArray[np.int64]:
        """Offsets at which a term of the equation changes."""
        length = self.length
        shift = [limit - self.deadlines[index] for limit in self.deadlines]
        parts = [np.zeros(1, dtype=np.int64)]
        for period, start in zip(self.periods, shift, strict=True):
            first = start if start >= 0 else start % period
            parts.append(np.arange(first, length, period, dtype=np.int64))
        return np.unique(np.concatenate(parts))

    def _busy_length(self) -> int:
        """Longest window in which the device cannot idle, whatever job blocks it at first."""
        blocking = max([self.background, *self.sections])
        length = blocking + sum(self.costs)
        while sum(length // period for period in self.periods) <= MAX_OFFSETS:
            pairs = zip(self.periods, self.costs, strict=True)
            grown = blocking + sum(-(-length // period) * cost for period, cost in pairs)
            if grown == length:
                break
            length = grown
        return length


def _section(task: SporadicTask) -> int:
    return cost_ns(task.cost_s if task.section_s is None else task.section_s)
