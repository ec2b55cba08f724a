"""One more task added to a set that holds: the exact test again, at the cost of the new task alone.

The demand h(t) of the old set is a step function; with it kept, the test of demand.py for the set
and one task more needs no other task: h'(t) = h(t) + n(t) C at the old deadlines and the new ones,
and B'(t) = max(B(t), q where D > t). Solved for C it gives the *largest* cost with which the set
still holds, in one pass:

    C <= (t - h(t) - B(t)) / n(t)   where n(t) >= 1,    C <= t - h(t)   where D > t (it blocks).

Windows are looked at up to `reach`. That is far enough as long as the horizon of demand.py with the
new cost, (b + sum (T_i - D_i) U_i) / (1 - U), is no longer; so the answer never exceeds the cost at
which it would be, which may refuse a little where a longer reach would not.

Source and assumptions: those of demand.py; the sections of the new task are its whole jobs. Same
verdict as from scratch, which a property test holds it to. Nanoseconds, all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierline_operator.admission.demand import MAX_POINTS

Whole = npt.NDArray[np.int64]
_SPARE_REACH = 2.0
_CLOSE_TO_ONE = 1e-6


@dataclass(frozen=True)
class DemandCurve:
    """The demand of a set that holds, up to `reach`."""

    points: Whole
    """Deadlines, ascending."""
    demand: Whole
    """h at each of them."""
    limits: Whole
    """Relative deadlines, ascending."""
    blocking: Whole
    """B before each of `limits`; past the last one it is `background`."""
    load: float
    slack_ns: float
    """Sum of max(0, T - D) U."""
    background: int
    reach: int

    @classmethod
    def of(
        cls,
        periods: Sequence[int],
        deadlines: Sequence[int],
        costs: Sequence[int],
        sections: Sequence[int],
        background: int = 0,
        least_reach: int = 0,
    ) -> DemandCurve | None:
        """The curve of a set that holds; None where its utilisation is too close to 1.

        `least_reach` should be no less than the deadline of any task that is to come.
        """
        rows = list(zip(periods, deadlines, costs, strict=True))
        load = sum(cost / period for period, _, cost in rows)
        slack = sum(max(0, period - limit) * cost / period for period, limit, cost in rows)
        if load > 1 - _CLOSE_TO_ONE:
            return None
        horizon = max([*deadlines, math.ceil((background + slack) / (1 - load)) + 1])
        reach = max(int(horizon * _SPARE_REACH), least_reach)
        if sum(reach // period + 1 for period in periods) > MAX_POINTS:
            return None
        parts = [np.arange(limit, reach + 1, period, dtype=np.int64) for period, limit, _ in rows]
        points = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        demand = np.zeros(len(points), np.int64)
        for period, limit, cost in rows:
            demand += _jobs(points, period, limit) * cost
        limits, blocking = _blocking(deadlines, sections, background)
        return cls(points, demand, limits, blocking, load, slack, background, reach)

    def largest_cost(self, period: int, deadline: int) -> int:
        """The largest job time of one more task with which every deadline holds, nanoseconds.

        Below 0 if there is none, or if more deadlines than `MAX_POINTS` had to be looked at.
        """
        if deadline > self.reach or len(self.points) + self.reach // period + 1 > MAX_POINTS:
            return -1
        most = self._within_reach(period, deadline)
        jobs = _jobs(self.points, period, deadline)
        free = self.points - self.demand
        early = jobs == 0
        if early.any():
            most = min(most, int(free[early].min()))
        if not early.all():
            late = ~early
            room = (free[late] - self.blocked(self.points[late])) // jobs[late]
            most = min(most, int(room.min()))
        own = np.arange(deadline, self.reach + 1, period, dtype=np.int64)
        room = own - self.demanded(own) - self.blocked(own)
        return min(most, int((room // np.arange(1, len(own) + 1)).min()))

    def with_task(self, period: int, deadline: int, cost: int) -> DemandCurve:
        """The curve with a task whose cost is at most `largest_cost`."""
        own = np.arange(deadline, self.reach + 1, period, dtype=np.int64)
        points = np.union1d(self.points, own)
        at = int(np.searchsorted(self.limits, deadline))
        limits = np.insert(self.limits, at, deadline)
        blocking = np.insert(self.blocking, at, self.blocked(np.array([deadline - 1]))[0])
        blocking[: at + 1] = np.maximum(blocking[: at + 1], cost)
        return DemandCurve(
            points,
            self.demanded(points) + _jobs(points, period, deadline) * cost,
            limits,
            blocking,
            self.load + cost / period,
            self.slack_ns + max(0, period - deadline) * cost / period,
            self.background,
            self.reach,
        )

    def demanded(self, instants: Whole) -> Whole:
        """h(t)."""
        at = np.searchsorted(self.points, instants, side="right") - 1
        if not len(self.points):
            return np.zeros(len(instants), np.int64)
        return np.where(at >= 0, self.demand[np.maximum(at, 0)], 0)

    def blocked(self, instants: Whole) -> Whole:
        """B(t): the longest section of a task whose deadline is later than t."""
        at = np.searchsorted(self.limits, instants, side="right")
        after = np.append(self.blocking, self.background)
        return after[at]

    def _within_reach(self, period: int, deadline: int) -> int:
        """The cost at which the horizon reaches as far as the curve."""
        left = self.reach * (1 - self.load) - self.background - self.slack_ns - 2
        return math.floor(period * left / (max(0, period - deadline) + self.reach)) - 1


def _jobs(points: Whole, period: int, deadline: int) -> Whole:
    return np.maximum((points - deadline) // period + 1, 0)


def _blocking(
    deadlines: Sequence[int], sections: Sequence[int], background: int
) -> tuple[Whole, Whole]:
    order = sorted(range(len(deadlines)), key=lambda index: deadlines[index])
    limits = np.array([deadlines[index] for index in order], np.int64)
    longest = np.array([max(sections[index], background) for index in order], np.int64)
    return limits, np.maximum.accumulate(longest[::-1])[::-1]
