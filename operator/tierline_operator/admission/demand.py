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

Horizon: whichever task blocks as it begins, the longest busy period is the least fixed point L of

    L = e + sum ceil(L / T_i) C_i,    e = max(b, max(q_j - C_j)),

b the longest section of a task without a deadline. Take a t > L. The task that blocks in it has no
job due by then, so B(t) and the costs of all other jobs released before L are no more than L; and
of those released later no more than n_i(t - L) are due by t. Hence

    h(t) + B(t) - t <= L + h(t - L) - t = h(t - L) - (t - L):

if t fails, so does the last deadline up to t - L, and the first one that fails is no later than L,
whatever D_max is (after Jeffay, Stanat, Martel and George, Rivierre, Spuri: a job misses its
deadline in a busy period only). The same says of any t > L + D_min that an earlier one has no more
slack. So has any t > P + D_max, P the least common multiple of the periods: the one P before it.
And as n_i(t) <= (t + max(0, T_i - D_i)) / T_i, every t past La(s) has a slack of more than s,

    La(s) = (q + sum max(0, T_i - D_i) U_i + s) / (1 - U),   q the longest section; b past D_max.

The verdict needs the t up to the least of these (with s = 0), the tightest of *all* windows those
up to the least with s = D_min and L + D_min: the shortest window never has more slack than D_min.

The first some thousands of these deadlines are looked at in one pass, in their order: each adds the
cost of its task to h. A late one is the answer. Of the others, where these are many, most are
stepped over. Between two distinct D_j B is constant and h does not fall with t: a t' < t that is
late by more than x has x < h(t') + B - t' <= h(t) + B - t'. So after a t that is not, the next to
look at is the last deadline before h(t) + B - x (QPA, Zhang and Burns, IEEE TC 58(9) 2009, within
each such stretch by itself). Bisection finds the largest x.

Both bounds of the horizon grow with 1 / (1 - U), and so does what an answer takes. It is counted
(`work`), so that whoever asks often can stop; one answer takes no more than a pass over MAX_POINTS
deadlines, or as many steps as there may be, and is "unproven" where that is not enough.

Traps this avoids: B(t) left out (T1); h + B searched as if it were monotone, it drops at every D_j
(T7: here every stretch is searched by itself); only first jobs looked at (T10: here every k); ties
and rounding (T12: time is whole nanoseconds, costs round up, deadlines and periods down, and a
blocker may start an instant before the window, so its whole section counts).

Assumptions: independent jobs, a device that never idles while a job waits, costs that contain every
overhead and are never exceeded. The test is sustainable: shorter costs or longer separations cannot
break what it accepts. A hyperperiod simulation has no such property (T6) and is not used.

What it does not do: choose plans (planning) or bound response times (response.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

NS: Final = 1_000_000_000
BEYOND_NS: Final = 1 << 52
"""Longer than any period or deadline, which are 1,000 h at most; 52 days."""
MAX_POINTS: Final = 1_000_000
"""Deadlines looked at in one pass before the test says that the utilisation is too close to 1."""
AT_ONCE: Final = 5_000
"""So many deadlines are looked at before any is stepped over."""
_MAX_STEPS: Final = 20_000
"""Steps before a busy period counts as endless, or stepping over deadlines as no gain."""
_FIRST_STEPS: Final = 200
"""Steps that take no longer than a pass over all deadlines would."""
_KEPT: Final = 64
"""Answers that took steps are kept, the last so many: each way of scheduling asks some again."""
_STEP, _STEP_EACH, _SORTED = 600, 4, 10
"""What a step takes, what it takes more for each task, and what keeping a deadline takes: so many
deadlines could be looked at meanwhile."""
_FAR: Final = 4 * 10**18
_SURELY: Final = 1 + 1e-6
"""More of the device's time than this is too much, however its sum was rounded."""

Kind = Literal["holds", "late", "overload", "unproven"]
Window = tuple[int, int, int | None]
"""Lateness (negative: slack), length, and the blocker."""
Answer = tuple[Kind, int, int, int | None]
"""The verdict, and such a window."""
Stretch = tuple[int, int, int, int | None]
"""Windows at least so long and shorter than the second: B(t), the same in all, and the blocker."""


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
    """A duration in nanoseconds, rounded up (but not for the float noise of a whole number).

    At most BEYOND_NS: no deadline holds with that, and sums of as many tasks as there may be stay
    below 2^63, whatever a profile says.
    """
    return math.ceil(round(min(seconds * NS, BEYOND_NS), 3))


def instant_ns(seconds: float) -> int:
    """A period or deadline in nanoseconds, rounded down (but not for float noise)."""
    return math.floor(round(seconds * NS, 3))


class DemandTest:
    """The test for fixed periods and deadlines, asked again and again for other costs.

    Everything is in nanoseconds. Deadlines up to the longest horizon asked for so far are kept in
    their order, each with its task, so that one answer is one pass over them however many tasks
    there are. Only with utilisations close to 1 are there many of them, however far the tasks'
    deadlines lie apart.
    """

    def __init__(
        self,
        periods: Sequence[int],
        deadlines: Sequence[int],
        *,
        most_points: int | None = None,
        most_steps: int | None = None,
    ) -> None:
        """One entry per task that has a deadline; all positive, D may exceed T.

        `most_points` and `most_steps` bound what one answer may take, MAX_POINTS and so on if not
        given; with less of them more is "unproven".
        """
        if any(period <= 0 for period in periods) or any(limit <= 0 for limit in deadlines):
            raise ValueError("cannot test tasks whose period or deadline is not positive")
        self.periods = tuple(periods)
        self.deadlines = tuple(deadlines)
        self.work = 0
        """Deadlines looked at so far in all answers, or what took as long as so many."""
        self._most_points = MAX_POINTS if most_points is None else most_points
        self._most_steps = _MAX_STEPS if most_steps is None else most_steps
        self._t = np.array(periods, dtype=np.int64)
        self._d = np.array(deadlines, dtype=np.int64)
        self._shortest = min(deadlines, default=0)
        self._longest = max(deadlines, default=0)
        repeat = math.lcm(*periods) if periods else 1
        self._repeat = min(_FAR, repeat + self._longest)
        # The blocking term is constant between deadlines: tasks by falling deadline.
        self._by_deadline = sorted(range(len(deadlines)), key=lambda i: -deadlines[i])
        self._ascending = np.argsort(self._d, kind="stable")
        self._reach = 0
        self._points: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._whose: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        """The task that is due at each point."""
        self._later: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        """For each point how many tasks are due by then: the others may block."""
        self._answers: dict[tuple[tuple[int, ...], tuple[int, ...], int], Answer] = {}

    def worst(self, costs: Sequence[int], sections: Sequence[int], background: int = 0) -> Answer:
        """(kind, shortfall ns, critical time ns, blocker); blocker -1 stands for the background.

        The shortfall is the largest over all windows, negative if every window has slack. Only
        where the utilisation is so close to 1 that not all are looked at, it is that of some late
        window, or the largest over those in which a deadline could be missed at all.
        """
        if not self.periods:
            return "holds", -_FAR, 0, None
        asked = (tuple(costs), tuple(sections), background)
        if asked in self._answers:
            return self._answers[asked]
        reach = self._long_run(costs, sections, background)
        if reach is None:
            return "overload", _FAR, _FAR, None
        beyond, verdict = reach
        near = beyond if self._count(beyond) <= AT_ONCE else self._near
        best = self._look(costs, sections, background, near)
        if near == beyond or best[0] > 0:
            return ("late" if best[0] > 0 else "holds"), *best
        answer = self._far(costs, sections, background, best, beyond, verdict)
        while len(self._answers) >= _KEPT:
            self._answers.pop(next(iter(self._answers)))
        self._answers[asked] = answer
        return answer

    def _far(
        self,
        costs: Sequence[int],
        sections: Sequence[int],
        background: int,
        best: Window,
        beyond: int,
        verdict: int,
    ) -> Answer:
        """The answer where the first deadlines, of which `best` is the tightest, do not tell."""
        longer = (section - cost for section, cost in zip(sections, costs, strict=True))
        busy = self._busy(costs, max(background, *longer), beyond)
        for_all = min(beyond, busy + self._shortest)
        # The shortest window is always looked at: its slack is an answer.
        for_verdict = max(self._shortest, min(verdict, busy))
        latest = sum(costs) + max(background, *sections)

        def walk(horizon: int, steps: int) -> _Walk:
            stretches = self._stretches(sections, background, horizon)
            return _Walk(self._t, self._d, costs, stretches, self._near, steps)

        first = walk(for_all, min(_FIRST_STEPS, self._most_steps))
        tightest = first.tightest(best, latest)
        self._stepped(first.steps)
        if tightest is None and self._count(for_verdict) <= self._most_points:
            tightest = self._look(costs, sections, background, for_verdict)
        elif tightest is None:
            second = walk(for_verdict, self._most_steps)
            late, known = second.late()
            self._stepped(second.steps)
            if not known:
                return "unproven", _FAR, _FAR, None
            tightest = late or best
        return ("late" if tightest[0] > 0 else "holds"), *tightest

    def _stepped(self, steps: int) -> None:
        """That takes longer than as many deadlines in a pass."""
        self.work += steps * (_STEP + _STEP_EACH * len(self.periods))

    @cached_property
    def _near(self) -> int:
        """The longest horizon up to which all deadlines are looked at in any case."""
        low, high = 0, self._repeat
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._count(middle) <= AT_ONCE else (low, middle)
        return low

    def _look(
        self, costs: Sequence[int], sections: Sequence[int], background: int, horizon: int
    ) -> Window:
        """The largest lateness up to there, when, and the blocker then: every deadline at once."""
        if horizon > self._reach:
            # Costs that come next reach a little further; twice as far is as good as found.
            far = max(horizon, 2 * self._reach)
            self._extend(far if self._count(far) <= AT_ONCE else horizon)
        end = int(np.searchsorted(self._points, horizon, side="right"))
        self.work += end
        if not end:
            return -_FAR, 0, None
        points, later = self._points[:end], self._later[:end]
        blocking = np.append(np.array(sections, dtype=np.int64)[self._ascending], background)
        blocking = np.maximum.accumulate(blocking[::-1])[::-1]
        # Of deadlines at the same time the last one has all that is due by then. As the load is
        # no more than 1, no sum is larger than the horizon and a job of each task.
        late = np.cumsum(np.array(costs, dtype=np.int64)[self._whose[:end]])
        late -= points
        late += blocking[later]
        # Of windows as tight as each other the first one in the last stretch.
        tight = np.flatnonzero(late == late.max())
        at = int(tight[np.searchsorted(later[tight], later[tight[-1]])])
        most, blocker = int(blocking[later[at]]), -1 if background else None
        if most > background:
            blocker = next(
                task
                for task in self._by_deadline
                if sections[task] == most and self.deadlines[task] > points[at]
            )
        return int(late[at]), int(points[at]), blocker

    def _stretches(
        self, sections: Sequence[int], background: int, horizon: int
    ) -> Iterator[Stretch]:
        """Up to the horizon, the longest windows first."""
        blocking = background
        blocker: int | None = -1 if background else None
        ceiling = horizon + 1
        for task in self._by_deadline:
            if self.deadlines[task] < ceiling:
                yield self.deadlines[task], ceiling, blocking, blocker
                ceiling = self.deadlines[task]
            if sections[task] > blocking:
                blocking, blocker = sections[task], task

    def jobs_due(self, instant: int) -> list[int]:
        """n_i(t): for each task the jobs that may have to be done in a window of that length."""
        return [max(0, (instant - d) // t + 1) for t, d in self._pairs()]

    def jobs_due_in(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """n_i(t), a row for each t and a column for each task."""
        counts: npt.NDArray[np.int64] = (instants[:, None] - self._d) // self._t + 1
        return np.maximum(counts, 0)

    def windows(self, most: int) -> npt.NDArray[np.int64]:
        """The shortest windows that end with a deadline, about `most` and no fewer than tasks.

        Each task's shortest one is among them: which task blocks matters only in windows shorter
        than the longest deadline.
        """
        low, high = self._shortest, self._repeat
        while high - low > max(1, self._shortest):
            middle = (low + high) // 2
            low, high = (middle, high) if self._count(middle) <= most else (low, middle)
        parts = [np.arange(d, low + 1, t, dtype=np.int64) for t, d in self._pairs()]
        return np.unique(np.concatenate([*parts, self._d]))

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
        return int(np.maximum((horizon - self._d) // self._t + 1, 0).sum())

    def _long_run(
        self, costs: Sequence[int], sections: Sequence[int], background: int
    ) -> tuple[int, int] | None:
        """How far the load says to look: for the tightest of all windows, for the verdict alone.

        None on overload. Nanoseconds; see the head of this file.
        """
        shares = np.array(costs, dtype=np.float64) / self._t
        load = float(shares.sum())
        verdict = beyond = self._repeat
        if load > _SURELY:
            return None
        if load > 1 - 1e-9:
            common = math.lcm(*self.periods)
            busy = sum(cost * (common // p) for cost, p in zip(costs, self.periods, strict=True))
            if busy > common:
                return None
        else:
            slack = float(np.maximum(self._t - self._d, 0) @ shares)
            most = max(background, *sections)

            def from_there(spare: int) -> int:
                """Where every window has more slack than that."""
                blocked, alone = (
                    math.ceil((longest + slack + spare) / (1 - load)) + 1
                    for longest in (most, background)
                )
                return min(self._repeat, blocked, max(self._longest, alone))

            verdict, beyond = from_there(0), from_there(self._shortest)
        return beyond, verdict

    def _busy(self, costs: Sequence[int], extra: int, limit: int) -> int:
        """The busy period, or `limit` where it is longer or takes too long to find."""
        charged = np.array(costs, dtype=np.int64)
        length = extra + int(charged.sum())
        for step in range(self._most_steps):
            grown = extra - int(-length // self._t @ charged)
            if grown == length or grown >= limit:
                self._stepped(step)
                return min(grown, limit)
            length = grown
        self._stepped(self._most_steps)
        return limit

    def _extend(self, horizon: int) -> None:
        parts = [np.arange(d, horizon + 1, t, dtype=np.int64) for t, d in self._pairs()]
        points = np.concatenate(parts)
        order = np.argsort(points, kind="stable")
        whose = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
        self._points, self._whose = points[order], whose[order]
        later = np.searchsorted(self._d[self._ascending], self._points, side="right")
        self._later = later.astype(np.int32)
        self._reach = horizon
        self.work += _SORTED * len(points)


class _Walk:
    """Looks for late windows where there are many, by steps over what cannot be one."""

    def __init__(
        self,
        periods: npt.NDArray[np.int64],
        deadlines: npt.NDArray[np.int64],
        costs: Sequence[int],
        stretches: Iterable[Stretch],
        known: int,
        most_steps: int,
    ) -> None:
        """`stretches` cover all windows; those up to `known` have been looked at."""
        self._t, self._d = periods, deadlines
        self._costs = np.array(costs, dtype=np.int64)
        self._stretches = [
            (max(first, known + 1), ceiling, blocking, blocker)
            for first, ceiling, blocking, blocker in stretches
            if ceiling > known + 1
        ]
        self._left = most_steps
        self.steps = 0

    def tightest(self, best: Window, most: int) -> Window | None:
        """The window with the largest lateness, which is at most `most`; `best` of those known.

        A late one that was met is enough. None where it takes too many steps.
        """
        target = best[0]
        while best[0] < most:
            later = self._later_than(target)
            if self.steps >= self._left and later is None:
                return None
            if later is None:
                most = target
            else:
                best = later
            if best[0] > 0:
                return best
            target = (best[0] + most) // 2
        return best

    def late(self) -> tuple[Window | None, bool]:
        """A window that is late, if one is, and whether that is known."""
        found = self._later_than(0)
        return found, found is not None or self.steps < self._left

    def _later_than(self, late: int) -> Window | None:
        for first, ceiling, blocking, blocker in self._stretches:
            instant = self._last_before(ceiling)
            while instant >= first:
                if self.steps >= self._left:
                    return None
                self.steps += 1
                needed = self._demand(instant) + blocking
                if needed - instant > late:
                    return needed - instant, instant, blocker
                instant = self._last_before(needed - late)
        return None

    def _demand(self, instant: int) -> int:
        """h(t)."""
        return int(np.maximum((instant - self._d) // self._t + 1, 0) @ self._costs)

    def _last_before(self, instant: int) -> int:
        """The last deadline before then, 0 if there is none."""
        ceiling = instant - 1 - self._d
        lasts = np.where(ceiling >= 0, instant - 1 - ceiling % self._t, 0)
        return int(lasts.max(initial=0))


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
