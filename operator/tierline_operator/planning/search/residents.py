"""Choosing resident sets for all tasks at given rings: memory where it helps the failing window.

The search starts with as little memory as possible, asks the exact test for the window that fails
worst, and gives memory to the task whose job time falls most per extent *in that window* (weighted
by its jobs due there, and once more for the blocker), again and again until the test accepts or
nothing helps. Job time over memory is close to convex, so this comes near the linear-programming
bound (docs/design/theory.md, 3: 96 against 99 of 150 sets). More starts catch what it
misses: filling by gain in utilisation first, and making the m shortest deadlines fully resident
(where jobs can be preempted, also the m smallest products of weights and period).

Where jobs may be preempted, the blocker of the failing window is first made preemptible, alone or
with those of its deadline and longer ones or with all, if that helps and its activations fit; or
the Soft tasks that then count by their mean.

A heuristic finds, it does not prove: whatever it returns as holding has passed the test.
Invariant: `used` never exceeds `limit`, in extents, activations of preemptible tasks included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.demand import AT_ONCE, DemandTest, Kind
from tierline_operator.admission.preemption import (
    FIGURES,
    Charges,
    Flags,
    Ints,
    Jobs,
    PlannedJob,
    Scheduling,
    going_on_ns,
)
from tierline_operator.planning.search.bound import Bound
from tierline_operator.planning.search.columns import Columns
from tierline_operator.planning.search.options import Option, Task

LOOK_AHEAD = 6
"""Points further up a curve that one move may reach, besides its end: curves have flat parts."""
MAX_MOVES = 4000
_FURTHER = np.array([*range(1, LOOK_AHEAD + 1), 1 << 30])
_CHARGED_FURTHER = np.array([1, 3, LOOK_AHEAD, 1 << 30])
_SURELY_TOO_MUCH = 1 + 2e-6
"""Of the device's time: an overload, however a sum was rounded."""
NOBODY: frozenset[int] = frozenset()
EFFORT: Final = 400_000
"""For each way of scheduling: half a second or so."""
_LOOKED_AT: Final = 100
"""So many deadlines that the test looks at, after AT_ONCE, take as long as one of these."""
FEW: Final = 24
"""So many tasks are searched from every start; of more every ring is tried from the first ones
before any is from others, as long as there is effort left."""
GRID: Final = 8
_EACH = 60
"""The cost of judging a choice in addition to its tasks, in as many of these."""

Floats = npt.NDArray[np.float64]
Starts = Literal["all", "first", "more"]


class Effort:
    """How much may be searched for one answer: counted, so that it is the same on any machine.

    Sets of a few tasks are searched to the end, unless their utilisation is so close to 1 that each
    question takes long.
    """

    def __init__(self, tasks: int) -> None:
        self.bounded = tasks > FEW
        self._each = tasks + _EACH if self.bounded else 0
        self._left = EFFORT

    def judged(self, looked_at: int = 0) -> None:
        """One choice more, for which the test looked at so many deadlines."""
        self._left -= self._each + max(0, looked_at - AT_ONCE) // _LOOKED_AT

    def unjudged(self) -> None:
        """The last one was counted before it is."""
        self._left += self._each

    @property
    def spent(self) -> bool:
        """Whether no further start is to be tried."""
        return self._left <= 0

    @property
    def overdrawn(self) -> bool:
        """Whether what was begun is not to be ended either: single questions take too long."""
        return self._left <= -EFFORT


@dataclass
class Outcome:
    """Where a search ended."""

    chosen: list[int]
    preemptible: frozenset[int]
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

    def __init__(
        self,
        tasks: Sequence[Task],
        rings: dict[str, int],
        test: DemandTest,
        scheduling: Scheduling = Scheduling.NON_PREEMPTIVE,
        effort: Effort | None = None,
        *,
        coarse: bool = False,
        bounds: dict[Hashable, Bound] | None = None,
    ) -> None:
        """`test` has one entry per guaranteed task, in order; `effort` bounds all searches.

        `coarse`: with fewer choices, which take less time to make. `bounds`: of searches of the
        same tasks and test; those whose choices are the same share theirs.
        """
        some_yield = scheduling is not Scheduling.NON_PREEMPTIVE
        self._bounds: dict[Hashable, Bound] = {} if bounds is None else bounds
        self._choices = frozenset(rings.items()), some_yield, coarse
        self.tasks = tasks
        self.test = test
        self.scheduling = scheduling
        self.options: list[list[Option]] = [
            task.options(
                rings.get(task.demand.domain, 0),
                to_yield=some_yield,
                coarse=coarse,
            )
            for task in tasks
        ]
        self.yield_already = frozenset(
            index for index, task in enumerate(tasks) if task.held and task.held.yielding
        )
        """Of running pods, whose jobs give the device away already; the others of them never do."""
        self._never_yield = frozenset(
            index
            for index, task in enumerate(tasks)
            if (not task.held.yielding if task.held else not task.demand.layout.extent_count)
        )
        """Nor do jobs without weights to lay out: they have no gates, and share a workspace."""
        self.due = [index for index, task in enumerate(tasks) if task.guaranteed]
        self.idle = [index for index, task in enumerate(tasks) if not task.guaranteed]
        self._hard = any(task.demand.criticality is Criticality.HARD for task in tasks)
        self._jobs: dict[tuple[int, int, bool], PlannedJob] = {}
        self._deadlines = np.array(
            [task.deadline_ns if task.guaranteed else np.inf for task in tasks], np.float64
        )
        self._rates = np.array([1.0 / t.period_ns if t.guaranteed else 0.0 for t in tasks])
        self._parked_each = np.array([task.parked_extents for task in tasks], np.int64)
        self._may_start = any(task.demand.first_section_s is not None for task in tasks)
        self.effort = effort or Effort(len(tasks))
        self._means = np.array(
            [index for index, task in enumerate(tasks) if task.mean is not None], np.int64
        )
        longest = max(map(len, self.options))
        padded = [[*options, *[options[-1]] * (longest - len(options))] for options in self.options]
        self._extents = np.array([[o.extents for o in row] for row in padded], dtype=np.int64)
        self._work = np.array([[o.work_ns for o in row] for row in padded], dtype=np.int64)
        self._rows = np.arange(len(tasks))
        self._last = np.array([len(options) - 1 for options in self.options], dtype=np.int64)
        self._resume_ns = max((task.resume_ns for task in tasks), default=0)
        self._due = np.array(self.due, np.int64)
        # What was asked last stays in columns: from one question to the next little changes.
        self._now = Columns(self._row, FIGURES + 1, self._last + 1)
        self._moves_at = np.full(len(tasks), -1)
        self._targets, self._taken, self._saved = np.zeros(
            (3, len(tasks), len(_FURTHER)), dtype=np.int64
        )
        self._charged_at = np.full((2, len(tasks)), -1)
        self._further = np.zeros((FIGURES, len(tasks), len(_CHARGED_FURTHER)), dtype=np.int64)
        self._known = np.zeros((len(tasks), len(_CHARGED_FURTHER)), dtype=bool)

    def least(self) -> int:
        """Extents that the smallest choice of every task takes."""
        least = sum(options[0].extents for options in self.options)
        return least + self._parked(self.yield_already)

    def run(self, limit: int, starts: Starts = "all") -> Outcome | None:
        """The first start that holds, or else the one that came nearest; None if nothing fits."""
        if self.least() > limit:
            return None
        best: Outcome | None = None
        for start in self._starts(limit, starts):
            outcome = self._improve(start, limit)
            if best is None or outcome.ok or outcome.late_ns < best.late_ns:
                best = outcome
            if best.ok or self.effort.spent:
                break
        return best

    def may_hold(self, limit: int) -> bool:
        """Whether some choice may hold: where not, there is nothing to look for."""
        return self.least() <= limit and not self.bound.refuses(limit)

    def near(self, limit: int) -> Outcome:
        """Where one search ends that cannot succeed: what is refused, and by how much."""
        return self._improve([0] * len(self.tasks), limit)

    @cached_property
    def may_yield(self) -> frozenset[int]:
        """The tasks whose jobs could give the device away."""
        return frozenset(range(len(self.tasks))) - self._never_yield

    @property
    def bound(self) -> Bound:
        """A bound on every choice of these options, whichever tasks yield."""
        if self._choices not in self._bounds:
            self._bounds[self._choices] = self._bound()
        return self._bounds[self._choices]

    def _bound(self) -> Bound:
        some_yield = self.scheduling is not Scheduling.NON_PREEMPTIVE
        choices = []
        for index, (task, options) in enumerate(zip(self.tasks, self.options, strict=True)):
            ways = [True] if index in self.yield_already else [False]
            if some_yield and not task.held:
                ways.append(True)
            choices.append(
                [
                    task.least_charge(option, preemptible=way, hard=self._hard)
                    for option in options
                    for way in ways
                ]
            )
        return Bound(self.test, choices, self.due)

    def judge(self, chosen: list[int], preemptible: frozenset[int] | None = None) -> Outcome:
        """The test's answer on these choices; without `preemptible` only running pods yield."""
        if preemptible is None:
            preemptible = self.yield_already
        costs, sections = self._charged(chosen, preemptible)
        without_rank = [*self.idle, *self.contained(chosen, preemptible)]
        lower = without_rank[int(sections[without_rank].argmax())] if without_rank else None
        background = 0 if lower is None else int(sections[lower])
        first_ns, starting = self.first(chosen, preemptible)
        if first_ns > background:
            background, lower = first_ns, starting
        before = self.test.work
        kind, late, critical, blocker = self.test.worst(
            costs[self._due].tolist(), sections[self._due].tolist(), background
        )
        self.effort.judged(self.test.work - before)
        if blocker is not None:
            blocker = lower if blocker < 0 else self.due[blocker]
        used = self._used(chosen) + self._parked(preemptible)
        return Outcome(chosen, preemptible, used, kind, late, critical, blocker)

    def first(self, chosen: Sequence[int], preemptible: Collection[int]) -> tuple[int, int]:
        """How long a program that starts may keep anybody waiting, nanoseconds, and its task.

        Its first jobs have no rank: none begins while anybody waits that has one. So at most one
        of all that start blocks a window, once, however often they start again.
        """
        if not self._may_start:
            return 0, 0
        first_ns = self.firsts(chosen, preemptible)
        index = int(first_ns.argmax())
        return int(first_ns[index]), index

    def firsts(self, chosen: Sequence[int], preemptible: Collection[int]) -> Ints:
        """How long a first job of each task may, 0 if unknown; good until others are asked for."""
        figures: Ints = self._now.of(chosen, self._mask(preemptible))[FIGURES]
        return figures

    def by_mean(self, chosen: Sequence[int], preemptible: Collection[int]) -> list[int]:
        """Soft tasks that these costs count by their mean."""
        if not len(self._means):
            return []
        at, mask = np.array(chosen), self._mask(preemptible)
        # Asked for other choices than those at hand, which stay: a search goes back to them.
        figures = self._now.looked_up(self._means, at[self._means], mask[self._means])
        by_mean: list[int] = self._means[Jobs(figures.T[:FIGURES]).by_mean > 0].tolist()
        return by_mean

    def contained(self, chosen: Sequence[int], preemptible: Collection[int]) -> list[int]:
        """Those of them whose jobs lose their rank when they take longer."""
        return [index for index in self.by_mean(chosen, preemptible) if index in preemptible]

    def charged(
        self, chosen: Sequence[int], preemptible: Collection[int] = NOBODY
    ) -> tuple[list[int], list[int]]:
        """Costs and sections of all tasks for the demand test, nanoseconds."""
        costs, sections = self._charged(chosen, preemptible)
        return costs.tolist(), sections.tolist()

    def _charged(
        self, chosen: Sequence[int], preemptible: Collection[int] = NOBODY
    ) -> tuple[Ints, Ints]:
        mask = self._mask(preemptible)
        jobs = self._jobs_of(chosen, mask)
        if not preemptible:
            return jobs.cost.copy(), jobs.section.copy()
        return self._charges(jobs, mask).of(self._rows, jobs)

    def _charges(self, jobs: Jobs, mask: Flags) -> Charges:
        return Charges(jobs, mask, self.scheduling, self._resume_ns)

    def going_on_ns(
        self, chosen: Sequence[int], preemptible: Collection[int] = NOBODY
    ) -> dict[int, int]:
        """The cost of one preemption of each preemptible task, nanoseconds."""
        mask = self._mask(preemptible)
        lost = going_on_ns(self._jobs_of(chosen, mask), mask)
        return {index: int(lost[index]) for index in preemptible}

    def _jobs_of(self, chosen: Sequence[int], mask: Flags) -> Jobs:
        """Good until the next choices are asked for."""
        return Jobs(self._now.of(chosen, mask)[:FIGURES])

    def _mask(self, preemptible: Collection[int]) -> Flags:
        mask = np.zeros(len(self.tasks), dtype=bool)
        mask[list(preemptible)] = True
        return mask

    def _row(self, index: int, at: int, preemptible: bool) -> tuple[int, ...]:
        """A column of `_now`."""
        first_ns = 0
        if self._may_start:
            option = self.options[index][at]
            first_ns = self.tasks[index].first_ns(option, preemptible=preemptible)
        return (*Jobs.row_of(self._job(index, at, preemptible)), first_ns)

    def _job(self, index: int, at: int, preemptible: bool) -> PlannedJob:
        key = (index, at, preemptible)
        if key not in self._jobs:
            option = self.options[index][at]
            self._jobs[key] = self.tasks[index].planned(
                option, preemptible=preemptible, hard=self._hard
            )
        return self._jobs[key]

    def fill(
        self,
        chosen: list[int],
        limit: int,
        takes: Callable[[Task], bool] = lambda _: True,
        preemptible: frozenset[int] = NOBODY,
    ) -> list[int]:
        """Give what is left by gain in utilisation per extent."""
        weights = np.array([1.0 / t.period_ns if takes(t) else 0.0 for t in self.tasks])
        chosen = list(chosen)
        used = self._used(chosen) + self._parked(preemptible)
        for index, target in islice(self._moves(chosen, limit - used, weights), MAX_MOVES):
            chosen[index] = target
        for index, options in enumerate(self.options):
            more = options[-1].extents - options[chosen[index]].extents
            if self.tasks[index].stays and takes(self.tasks[index]) and more <= limit - used:
                used += more
                chosen[index] = len(options) - 1
        return chosen

    def shed(self, outcome: Outcome, gives: Callable[[Task], bool]) -> Outcome:
        """Take memory back from such tasks, one after another, as far as the test still holds.

        `outcome` must hold. Job time falls along a curve and the test is sustainable, so where jobs
        are not preempted what holds with some memory holds with more: bisection finds the least.
        """
        for index, task in enumerate(self.tasks):
            low, high = 0, outcome.chosen[index]
            while gives(task) and low < high and not self.effort.overdrawn:
                middle = (low + high) // 2
                chosen = list(outcome.chosen)
                chosen[index] = middle
                tried = self.judge(chosen, outcome.preemptible)
                if tried.ok:
                    outcome, high = tried, middle
                else:
                    low = middle + 1
        return outcome

    def _starts(self, limit: int, which: Starts) -> Iterator[list[int]]:
        if which != "more":
            nothing = [0] * len(self.tasks)
            yield nothing
            yield self.fill(nothing, limit, preemptible=self.yield_already)
        if which != "first":
            yield from self._resident_first(limit, lambda task: task.deadline_ns)
            if self.scheduling is not Scheduling.NON_PREEMPTIVE:
                yield from self._resident_first(
                    limit, lambda task: task.demand.layout.weight_bytes * task.period_ns
                )

    def _resident_first(self, limit: int, key: Callable[[Task], int]) -> Iterator[list[int]]:
        """The first 1, 2, … tasks by that key fully resident; of many some of these numbers."""
        chosen = [0] * len(self.tasks)
        found = []
        for index in sorted(self.due, key=lambda index: key(self.tasks[index])):
            chosen[index] = len(self.options[index]) - 1
            if self._used(chosen) + self._parked(self.yield_already) > limit:
                break
            found.append(list(chosen))
        yield from found if not self.effort.bounded else found[:: -(-len(found) // GRID)]

    def _improve(self, chosen: list[int], limit: int) -> Outcome:
        outcome = self.judge(list(chosen))
        left = MAX_MOVES
        if outcome.kind == "overload" and not outcome.preemptible:
            outcome, left = self._out_of_overload(outcome, limit)
        for _ in range(left):
            # What preemptible jobs cost others takes longest to weigh.
            spent = self.effort.spent if outcome.preemptible else self.effort.overdrawn
            if outcome.ok or spent:
                break
            yielding = self._let_yield(outcome, limit)
            if yielding is not None:
                outcome = yielding
                continue
            room = limit - outcome.used
            if outcome.preemptible:
                move = self._best_charged_move(outcome, room)
            else:
                move = self._best_move(outcome.chosen, room, self._weights(outcome))
            if move is None:
                break
            chosen = list(outcome.chosen)
            chosen[move[0]] = move[1]
            outcome = self.judge(chosen, outcome.preemptible)
        if outcome.ok:
            return outcome
        preemptible = outcome.preemptible
        filled = self.fill(outcome.chosen, limit, preemptible=preemptible)
        full = self.judge(filled, preemptible)
        return full if full.ok or full.late_ns < outcome.late_ns else outcome

    def _out_of_overload(self, outcome: Outcome, limit: int) -> tuple[Outcome, int]:
        """Where the moves of an overload lead, and how many are left.

        As long as the tasks need too much of the device, no job that yields would help, but that of
        a Soft task that then counts by its mean; and what a move is worth does not depend on those
        before it. So nothing is asked of the test while it is sure to answer that, with those Soft
        tasks yielding or not: charges of preemptions only come to their load.
        """
        chosen, left = list(outcome.chosen), MAX_MOVES
        load = _Load(self, chosen)
        unasked = False
        for index, target in self._moves(chosen, limit - outcome.used, self._rates):
            if len(self._means) and self.effort.overdrawn:
                break
            if load.contained and load.yielding > _SURELY_TOO_MUCH:
                self.effort.judged()
            elif load.contained:
                yielding = self._let_yield(replace(outcome, chosen=list(chosen)), limit)
                if yielding is not None:
                    return yielding, left - 1
            load.move(index, chosen[index], target)
            chosen[index], left = target, left - 1
            unasked = load.staying > _SURELY_TOO_MUCH and left > 0
            if unasked:
                self.effort.judged()
                continue
            outcome = self.judge(list(chosen), outcome.preemptible)
            if outcome.kind != "overload" or not left:
                break
        if unasked:
            self.effort.unjudged()
            outcome = self.judge(list(chosen), outcome.preemptible)
        return outcome, left

    def _let_yield(self, outcome: Outcome, limit: int) -> Outcome | None:
        """The same with the blocker of the failing window preemptible, if that helps.

        Or with the Soft tasks that then count by their mean.
        """
        if self.scheduling is Scheduling.NON_PREEMPTIVE:
            return None
        blocker, everyone = outcome.blocker, self.may_yield
        ways: list[frozenset[int] | set[int]] = []
        if blocker is not None and blocker not in outcome.preemptible:
            later = {i for i in everyone if self._patience(i) >= self._patience(blocker)}
            ways = [everyone & {blocker}, later, everyone]
        soft = set(self.contained(outcome.chosen, everyone)) - outcome.preemptible
        if soft:
            ways.append(soft)
        best: Outcome | None = None
        for added in ways:
            tried = self.judge(outcome.chosen, outcome.preemptible | added)
            if tried.used <= limit and tried.late_ns < (best or outcome).late_ns:
                best = tried
        return best

    def _patience(self, index: int) -> float:
        return float(self._deadlines[index])

    def _weights(self, outcome: Outcome) -> Floats:
        """How much a second of each task's job time weighs in the failing window."""
        if outcome.kind != "late":
            return self._rates
        weights = np.zeros(len(self.tasks))
        weights[self._due] = self.test.jobs_due_in(np.array([outcome.critical_ns]))[0]
        if outcome.blocker is not None:
            weights[outcome.blocker] += 1.0
        return weights

    def _moves(
        self, chosen: Sequence[int], room: int, weights: Floats
    ) -> Iterator[tuple[int, int]]:
        """The moves that `_best_move` would name one after another, each being made."""
        at = list(chosen)
        open_: list[tuple[float, int, int, int, int]] = []

        def those_of(index: int) -> Iterator[tuple[float, int, int, int, int]]:
            extents, work, last = self._curves[index]
            now, weight = at[index], float(weights[index])
            for column, further in enumerate(_FURTHER.tolist()):
                target = min(now + further, last)
                taken = extents[target] - extents[now]
                if not 0 < taken <= room:
                    continue
                gain = weight * (work[now] - work[target]) / taken
                if gain > 0:
                    yield -gain, index * len(_FURTHER) + column, target, taken, now

        for index in range(len(at)):
            open_ += those_of(index)
        heapify(open_)
        while open_:
            _, place, target, taken, from_ = heappop(open_)
            index = place // len(_FURTHER)
            if taken > room or at[index] != from_:
                continue
            room -= taken
            at[index] = target
            yield index, target
            for one in those_of(index):
                heappush(open_, one)

    @cached_property
    def _curves(self) -> list[tuple[list[int], list[int], int]]:
        """Extents and times of each task's choices, and the number of the last one."""
        rows = zip(self._extents.tolist(), self._work.tolist(), self._last.tolist(), strict=True)
        return list(rows)

    def _best_move(
        self, chosen: Sequence[int], room: int, weights: Floats
    ) -> tuple[int, int] | None:
        at = np.array(chosen)
        changed = np.flatnonzero(at != self._moves_at)
        if len(changed):
            rows, here = changed[:, None], at[changed, None]
            targets = np.minimum(here + _FURTHER, self._last[rows])
            self._targets[changed] = targets
            self._taken[changed] = self._extents[rows, targets] - self._extents[rows, here]
            self._saved[changed] = self._work[rows, here] - self._work[rows, targets]
            self._moves_at = at
        taken = self._taken
        open_ = (taken > 0) & (taken <= room)
        gains = np.where(open_, weights[:, None] * self._saved / np.maximum(taken, 1), 0.0)
        best = int(np.argmax(gains))
        if gains.flat[best] <= 0:
            return None
        index, column = divmod(best, len(_FURTHER))
        return index, int(self._targets[index, column])

    def _best_charged_move(self, outcome: Outcome, room: int) -> tuple[int, int] | None:
        """The move that relieves the failing window most per extent: one changes others' costs."""
        weights = self._weights(outcome).copy()
        late = outcome.kind == "late"
        if outcome.blocker is not None:
            weights[outcome.blocker] -= late
        mask = self._mask(outcome.preemptible)
        jobs = Jobs(self._jobs_of(outcome.chosen, mask).rows.copy())
        charges = self._charges(jobs, mask)
        costs, sections = charges.of(self._rows, jobs)
        blocking = np.where(self._deadlines > outcome.critical_ns, sections, 0)
        if not late:
            blocking[:] = 0
        *second, longest = np.sort(blocking)[-2:].tolist()

        index, target, taken, others = self._further_than(outcome.chosen, mask, room)
        if not len(index):
            return None
        cost, section = charges.of(index, others)
        mine = blocking[index]
        blocked = np.where(mine == longest, second[0] if second else 0, longest)
        blocked = np.maximum(blocked, np.where(mine > 0, section, 0))
        relief = weights[index] * (costs[index] - cost) + longest - blocked
        same = charges.same_for_others(index, others)
        if not same.all():
            now = self._load(outcome, weights, costs, sections)
            for place in np.flatnonzero(~same).tolist():
                self.effort.judged()
                chosen = list(outcome.chosen)
                chosen[index[place]] = int(target[place])
                changed = self._charged(chosen, outcome.preemptible)
                relief[place] = now - self._load(outcome, weights, *changed)
        gains = relief / taken
        best = int(gains.argmax())
        return (int(index[best]), int(target[best])) if gains[best] > 0 else None

    def _further_than(
        self, chosen: Sequence[int], mask: Flags, room: int
    ) -> tuple[Ints, Ints, Ints, Jobs]:
        """Other choices, that take up to `room` more: task, choice, how much more, and the jobs."""
        at = np.array(chosen)
        before = np.array([at, mask])
        changed = np.flatnonzero((before != self._charged_at).any(axis=0))
        self._known[changed] = False
        self._charged_at = before
        targets = np.minimum(at[:, None] + _CHARGED_FURTHER, self._last[:, None])
        rows = self._rows[:, None]
        taken = self._extents[rows, targets] - self._extents[rows, at[:, None]]
        new = np.diff(targets, axis=1, prepend=at[:, None]) > 0
        index, column = np.nonzero(new & (taken <= room))
        for place in np.flatnonzero(~self._known[index, column]).tolist():
            i, c = int(index[place]), int(column[place])
            job = self._job(i, int(targets[i, c]), bool(mask[i]))
            self._further[:, i, c] = Jobs.row_of(job)
            self._known[i, c] = True
        others = Jobs(self._further[:, index, column])
        return index, targets[index, column], taken[index, column], others

    def _load(self, outcome: Outcome, weights: Floats, costs: Ints, sections: Ints) -> float:
        """The work that is due in the failing window, and what blocks it."""
        demand = float(np.cumsum(weights * costs)[-1])
        if outcome.kind != "late":
            return demand
        return demand + int(sections[self._deadlines > outcome.critical_ns].max(initial=0))

    def _used(self, chosen: Sequence[int]) -> int:
        return int(self._extents[self._rows, chosen].sum())

    def _parked(self, preemptible: Collection[int]) -> int:
        return int(self._parked_each[list(preemptible)].sum()) if preemptible else 0


class _Load:
    """Of the device's time what all tasks need where nobody yields, as moves are made."""

    def __init__(self, search: Search, chosen: Sequence[int]) -> None:
        self._job, self._rates = search._job, search._rates.tolist()
        costs, _ = search.charged(chosen)
        self.staying = sum(map(operator.mul, costs, self._rates))
        yields = search.scheduling is not Scheduling.NON_PREEMPTIVE
        self._may = frozenset(search._means.tolist()) & search.may_yield if yields else NOBODY
        self.contained: set[int] = set()
        """Soft tasks that would count by their mean if they yielded."""
        self.yielding = self.staying
        """The load if these did; charges of preemptions left out."""
        for index in self._may:
            self._count(index, chosen[index], 1)

    def move(self, index: int, at: int, target: int) -> None:
        """A task gets another choice."""
        saved = self._cost_ns(index, at) - self._cost_ns(index, target)
        self.staying -= saved * self._rates[index]
        self.yielding -= saved * self._rates[index]
        if index in self._may:
            self._count(index, at, -1)
            self._count(index, target, 1)

    def _cost_ns(self, index: int, at: int) -> int:
        return self._job(index, at, False).cost_ns

    def _count(self, index: int, at: int, sign: int) -> None:
        """Take a Soft task that counts by its mean in, or out again."""
        job = self._job(index, at, True)
        if not job.by_mean:
            return
        (self.contained.add if sign > 0 else self.contained.discard)(index)
        self.yielding += sign * (job.cost_ns - self._cost_ns(index, at)) * self._rates[index]
