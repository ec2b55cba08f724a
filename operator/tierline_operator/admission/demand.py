"""Do all deadlines hold? The exact test for sporadic tasks under non-preemptive EDF.

Theorem (Jeffay, Stanat, Martel, RTSS 1991; George, Rivierre, Spuri, INRIA RR-2966, 1996; the
blocking term is machine-checked in Prosa, `analysis/definitions/blocking_bound/edf.v`). With
n_i(t) = max(0, floor((t - D_i) / T_i) + 1), all deadlines hold, for every arrival pattern whose
releases are at least T_i apart, if and only if the utilisation is at most 1 and

    h(t) + B(t) <= t      for every t = k T_i + D_i up to the horizon,
    h(t) = sum n_i(t) C_i,   B(t) = max{ q_j : D_j > t },   0 if there is none.

q_j is the longest stretch in which task j cannot be preempted: C_j for non-preemptive jobs; shorter
where jobs yield at layer boundaries (then C_i must contain what a preemption by i costs, and the
test is sufficient, no longer exact). A task without a deadline (`deadline_s=None`) demands nothing
and can block at every t.

Horizon: max(D_max, min(L, La, P + D_max)): L is the least fixed point of L = b + sum ceil(L/T_i)
C_i, La = (b + sum (T_i - D_i) U_i) / (1 - U), P the least common multiple of the periods, b the
longest section of a task without a deadline (beyond D_max nothing else blocks).

Traps this avoids: B(t) left out (T1); h + B searched as if it were monotone, it drops at every D_j
(T7: here every t is looked at); only first jobs looked at (T10: here every k); ties and rounding
(T12: time is whole nanoseconds, costs round up, deadlines and periods down, and a blocker may start
an instant before the window, so its whole section counts).

Assumptions: independent jobs, a device that never idles while a job waits, costs that contain every
overhead and are never exceeded. The test is sustainable: shorter costs or longer separations cannot
break what it accepts. A hyperperiod simulation has no such property (T6) and is not used.

What it does not do: choose plans (planning) or bound response times (response.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

NS: Final = 1_000_000_000
MAX_POINTS: Final = 400_000
"""Deadlines looked at before the test says that the utilisation is too close to 1 to prove."""
_FAR: Final = 4 * 10**18

Kind = Literal["holds", "late", "overload", "unproven"]


@dataclass(frozen=True)
class SporadicTask:
    """One task as the test sees it, seconds. `deadline_s=None`: it only blocks, by `section_s`."""

    name: str
    period_s: float
    deadline_s: float | None
    cost_s: float
    section_s: float | None = None
    """Longest stretch without a preemption point; None: the whole job."""


@dataclass(frozen=True)
class Verdict:
    """Whether every deadline holds; where it is tightest, or where and by how much it fails."""

    ok: bool
    kind: Kind
    utilisation: float
    critical_time_s: float
    """The window with the least slack (the failing one if not ok); infinite on overload."""
    blocker: int | None
    """Index of the task that blocks in that window."""
    shortfall_s: float
    """Missing time in that window; negative: the slack; infinite on overload."""
    victims: tuple[int, ...] = ()
    """Indices of the tasks with a deadline at the critical time."""


def cost_ns(seconds: float) -> int:
    """A duration in nanoseconds, rounded up (but not for the float noise of a whole number)."""
    return math.ceil(round(seconds * NS, 3))


def instant_ns(seconds: float) -> int:
    """A period or deadline in nanoseconds, rounded down (but not for float noise)."""
    return math.floor(round(seconds * NS, 3))


class DemandTest:
    """The test for fixed periods and deadlines, asked again and again for other costs.

    Everything is in nanoseconds. Deadlines up to the longest horizon asked for so far are kept
    with their job counts, so that one answer is one product of a matrix and a vector.
    """

    def __init__(self, periods: Sequence[int], deadlines: Sequence[int]) -> None:
        """One entry per task that has a deadline; all positive, D may exceed T."""
        if any(period <= 0 for period in periods) or any(limit <= 0 for limit in deadlines):
            raise ValueError("cannot test tasks whose period or deadline is not positive")
        self.periods = tuple(periods)
        self.deadlines = tuple(deadlines)
        self._t = np.array(periods, dtype=np.int64)
        self._d = np.array(deadlines, dtype=np.int64)
        self._longest = max(deadlines, default=0)
        repeat = math.lcm(*periods) if periods else 1
        self._repeat = min(_FAR, repeat + self._longest)
        # The blocking term is constant between deadlines: tasks by falling deadline.
        self._by_deadline = sorted(range(len(deadlines)), key=lambda i: -deadlines[i])
        self._reach = 0
        self._points: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._counts: npt.NDArray[np.int64] = np.empty((len(periods), 0), dtype=np.int64)
        self._below: list[int] = []
        self._is_short = self._count(self._longest) <= MAX_POINTS
        if periods and self._is_short:
            self._extend(self._longest)

    def worst(
        self, costs: Sequence[int], sections: Sequence[int], background: int = 0
    ) -> tuple[Kind, int, int, int | None]:
        """(kind, shortfall ns, critical time ns, blocker); blocker -1 stands for the background.

        The shortfall is the largest over all windows, negative if every window has slack.
        """
        if not self.periods:
            return "holds", -_FAR, 0, None
        horizon = self._horizon(costs, sections, background)
        if horizon is None:
            return "overload", _FAR, _FAR, None
        if horizon > self._reach:
            if self._count(horizon) > MAX_POINTS:
                return "unproven", _FAR, _FAR, None
            self._extend(horizon)
        end = int(np.searchsorted(self._points, horizon, side="right"))
        lateness = np.array(costs, dtype=np.int64) @ self._counts[:, :end] - self._points[:end]
        # B(t) counts tasks with D_j > t: walk the deadlines downwards, one constant stretch each.
        blocking = background
        blocker: int | None = -1 if background else None
        edge = end
        best: tuple[int, int, int | None] = (-_FAR, 0, None)
        for task in (*self._by_deadline, None):
            start = 0 if task is None else min(self._below[task], end)
            if start < edge:
                at = start + int(np.argmax(lateness[start:edge]))
                late = int(lateness[at]) + blocking
                if late > best[0]:
                    best = (late, int(self._points[at]), blocker)
                edge = start
            if task is not None and sections[task] > blocking:
                blocking, blocker = sections[task], task
        return ("late" if best[0] > 0 else "holds"), *best

    def jobs_due(self, instant: int) -> list[int]:
        """n_i(t): for each task the jobs that may have to be done in a window of that length."""
        return [max(0, (instant - d) // t + 1) for t, d in self._pairs()]

    def victims(self, instant: int) -> tuple[int, ...]:
        """The tasks that have a deadline exactly then."""
        return tuple(
            index
            for index, (t, d) in enumerate(self._pairs())
            if instant >= d and (instant - d) % t == 0
        )

    def _pairs(self) -> zip[tuple[int, int]]:
        return zip(self.periods, self.deadlines, strict=True)

    def _count(self, horizon: int) -> int:
        """How many deadlines there are up to then, each task's counted by itself."""
        return sum((horizon - d) // t + 1 for t, d in self._pairs() if d <= horizon)

    def _horizon(
        self, costs: Sequence[int], sections: Sequence[int], background: int
    ) -> int | None:
        """Nanoseconds after which nothing new can fail, or None on overload.

        From the longest deadline on only the background blocks. Where there are too many deadlines
        before that one, the blocker is reckoned with everywhere. It is a job of a task that has no
        other one due in such a window, so its section adds to the busy period no more than what it
        exceeds the task's cost by; and who misses a deadline does so within a busy period.
        """
        load = sum(cost / period for cost, period in zip(costs, self.periods, strict=True))
        if load > 1 - 1e-9:
            common = math.lcm(*self.periods)
            busy = sum(cost * (common // p) for cost, p in zip(costs, self.periods, strict=True))
            return None if busy > common else self._repeat
        slack = sum(
            max(0, t - d) * cost / t for (t, d), cost in zip(self._pairs(), costs, strict=True)
        )
        most = background if self._is_short else max(background, *sections)
        limit = min(self._repeat, math.ceil((most + slack) / (1 - load)) + 1)
        if limit > self._reach:
            beside = background
            if not self._is_short:
                longer = (section - cost for section, cost in zip(sections, costs, strict=True))
                beside = max(background, *longer)
            limit = min(limit, self._busy(costs, beside, limit))
        return max(self._longest, limit) if self._is_short else limit

    def _busy(self, costs: Sequence[int], background: int, limit: int) -> int:
        """The longest busy period, or `limit` once it is known to be longer."""
        length = background + sum(costs)
        while length < limit:
            grown = background - sum(
                -length // period * cost for cost, period in zip(costs, self.periods, strict=True)
            )
            if grown == length:
                break
            length = grown
        return min(length, limit)

    def _extend(self, horizon: int) -> None:
        parts = [np.arange(d, horizon + 1, t, dtype=np.int64) for t, d in self._pairs()]
        self._points = np.unique(np.concatenate(parts))
        counts = (self._points[None, :] - self._d[:, None]) // self._t[:, None] + 1
        self._counts = np.maximum(counts, 0)
        self._reach = horizon
        self._below = [int(np.searchsorted(self._points, d, side="left")) for d in self.deadlines]


def np_edf(tasks: Sequence[SporadicTask]) -> Verdict:
    """Test `tasks` (times in seconds). Indices in the answer count in the order given.

    Raises ValueError for a period or deadline that is not positive.
    """
    due = [index for index, task in enumerate(tasks) if task.deadline_s is not None]
    test = DemandTest(
        [instant_ns(tasks[index].period_s) for index in due],
        [instant_ns(tasks[index].deadline_s or 0.0) for index in due],
    )
    costs = [cost_ns(tasks[index].cost_s) for index in due]
    sections = [_section_ns(tasks[index]) for index in due]
    idle = [index for index, task in enumerate(tasks) if task.deadline_s is None]
    background = max(idle, key=lambda index: _section_ns(tasks[index]), default=None)
    kind, late, critical, blocker = test.worst(
        costs, sections, 0 if background is None else _section_ns(tasks[background])
    )
    load = sum(tasks[index].cost_s / tasks[index].period_s for index in due)
    unbounded = kind in {"overload", "unproven"}
    return Verdict(
        ok=kind == "holds",
        kind=kind,
        utilisation=load,
        critical_time_s=math.inf if unbounded else critical / NS,
        blocker=None if blocker is None else background if blocker < 0 else due[blocker],
        shortfall_s=math.inf if unbounded else -math.inf if late <= -_FAR else late / NS,
        victims=() if unbounded else tuple(due[index] for index in test.victims(critical)),
    )


def _section_ns(task: SporadicTask) -> int:
    return cost_ns(task.cost_s if task.section_s is None else task.section_s)
