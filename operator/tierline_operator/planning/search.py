"""Choosing resident sets for all tasks at given rings: memory where it helps the failing window.

The search starts with as little memory as possible, asks the exact test for the window that fails
worst, and gives memory to the task whose job time falls most per extent *in that window* (weighted
by its jobs due there, and once more for the blocker), again and again until the test accepts or
nothing helps. Job time over memory is close to convex, so this comes near the linear-programming
bound (realtime theory notes, section 2: 96 against 99 of 150 sets). More starts catch what it
misses: filling by gain in utilisation first, and making the m shortest deadlines fully resident
(where jobs can be preempted, also the m smallest products of weights and period).

Where jobs may be preempted, the blocker of the failing window is first made preemptible, alone or
with those of its deadline and longer ones or with all, if that helps and its activations fit; or
the Soft tasks that then count by their mean.

A heuristic finds, it does not prove: whatever it returns as holding has passed the test.
Invariant: `used` never exceeds `limit`, in extents, activations of preemptible tasks included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tierline_api.realtime import Criticality
from tierline_operator.admission.demand import DemandTest, Kind
from tierline_operator.admission.preemption import PlannedJob, Scheduling, charge
from tierline_operator.planning.options import Option, Task

LOOK_AHEAD = 6
"""Points further up a curve that one move may reach, besides its end: curves have flat parts."""
MAX_MOVES = 4000
NOBODY: frozenset[int] = frozenset()


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
    ) -> None:
        """`test` has one entry per guaranteed task, in order."""
        self.tasks = tasks
        self.test = test
        self.scheduling = scheduling
        self.options: list[list[Option]] = [
            task.options(
                rings.get(task.demand.domain, 0),
                to_yield=scheduling is not Scheduling.NON_PREEMPTIVE,
            )
            for task in tasks
        ]
        self.yield_already = frozenset(
            index for index, task in enumerate(tasks) if task.held and task.held.yielding
        )
        """Of running pods, whose jobs give the device away already; the others of them never do."""
        self._never_yield = frozenset(
            index for index, task in enumerate(tasks) if task.held and not task.held.yielding
        )
        self.due = [index for index, task in enumerate(tasks) if task.guaranteed]
        self.idle = [index for index, task in enumerate(tasks) if not task.guaranteed]
        self._hard = any(task.demand.criticality is Criticality.HARD for task in tasks)
        self._jobs: dict[tuple[int, int, bool], PlannedJob] = {}
        self._resume_ns = max((task.resume_ns for task in tasks), default=0)

    def least(self) -> int:
        """Extents that the smallest choice of every task takes."""
        least = sum(options[0].extents for options in self.options)
        return least + self._parked(self.yield_already)

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

    @property
    def may_yield(self) -> frozenset[int]:
        """Whose jobs could give the device away."""
        return frozenset(range(len(self.tasks))) - self._never_yield

    def judge(self, chosen: list[int], preemptible: frozenset[int] | None = None) -> Outcome:
        """What the test says of these choices; without `preemptible` only running pods yield."""
        if preemptible is None:
            preemptible = self.yield_already
        costs, sections = self.charged(chosen, preemptible)
        without_rank = [*self.idle, *self.contained(chosen, preemptible)]
        lower = max(without_rank, key=lambda index: sections[index], default=None)
        kind, late, critical, blocker = self.test.worst(
            [costs[index] for index in self.due],
            [sections[index] for index in self.due],
            0 if lower is None else sections[lower],
        )
        if blocker is not None:
            blocker = lower if blocker < 0 else self.due[blocker]
        used = self._used(chosen) + self._parked(preemptible)
        return Outcome(chosen, preemptible, used, kind, late, critical, blocker)

    def by_mean(self, chosen: Sequence[int], preemptible: Collection[int]) -> list[int]:
        """Soft tasks that these costs count by their mean."""
        rows = enumerate(chosen)
        return [i for i, at in rows if self._job(i, at, i in preemptible).by_mean]

    def contained(self, chosen: Sequence[int], preemptible: Collection[int]) -> list[int]:
        """Those of them whose jobs lose their rank when they take longer."""
        return [index for index in self.by_mean(chosen, preemptible) if index in preemptible]

    def charged(
        self, chosen: Sequence[int], preemptible: Collection[int] = NOBODY
    ) -> tuple[list[int], list[int]]:
        """Costs and sections of all tasks for the demand test, nanoseconds."""
        jobs = [self._job(index, at, index in preemptible) for index, at in enumerate(chosen)]
        if not preemptible:
            return [job.cost_ns for job in jobs], [job.section_ns for job in jobs]
        return charge(jobs, preemptible, self.scheduling, self._resume_ns)

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
        weights = [1.0 / task.period_ns if takes(task) else 0.0 for task in self.tasks]
        chosen = list(chosen)
        used = self._used(chosen) + self._parked(preemptible)
        for _ in range(MAX_MOVES):
            move = self._best_move(chosen, limit - used, weights)
            if move is None:
                break
            index, target = move
            used += self.options[index][target].extents - self.options[index][chosen[index]].extents
            chosen[index] = target
        return chosen

    def shed(self, outcome: Outcome, gives: Callable[[Task], bool]) -> Outcome:
        """Take memory back from such tasks, one after another, as far as the test still holds.

        `outcome` must hold. Job time falls along a curve and the test is sustainable, so where jobs
        are not preempted what holds with some memory holds with more: bisection finds the least.
        """
        for index, task in enumerate(self.tasks):
            low, high = 0, outcome.chosen[index]
            while gives(task) and low < high:
                middle = (low + high) // 2
                chosen = list(outcome.chosen)
                chosen[index] = middle
                tried = self.judge(chosen, outcome.preemptible)
                if tried.ok:
                    outcome, high = tried, middle
                else:
                    low = middle + 1
        return outcome

    def _starts(self, limit: int) -> Iterator[list[int]]:
        nothing = [0] * len(self.tasks)
        yield nothing
        yield self.fill(nothing, limit, preemptible=self.yield_already)
        yield from self._resident_first(limit, lambda task: task.deadline_ns)
        if self.scheduling is not Scheduling.NON_PREEMPTIVE:
            yield from self._resident_first(
                limit, lambda task: task.demand.layout.weight_bytes * task.period_ns
            )

    def _resident_first(self, limit: int, key: Callable[[Task], int]) -> Iterator[list[int]]:
        """The first 1, 2, … tasks by that key fully resident."""
        chosen = [0] * len(self.tasks)
        for index in sorted(self.due, key=lambda index: key(self.tasks[index])):
            chosen[index] = len(self.options[index]) - 1
            if self._used(chosen) + self._parked(self.yield_already) > limit:
                return
            yield list(chosen)

    def _improve(self, chosen: list[int], limit: int) -> Outcome:
        outcome = self.judge(list(chosen))
        for _ in range(MAX_MOVES):
            if outcome.ok:
                return outcome
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
        preemptible = outcome.preemptible
        filled = self.fill(outcome.chosen, limit, preemptible=preemptible)
        full = self.judge(filled, preemptible)
        return full if full.ok or full.late_ns < outcome.late_ns else outcome

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
        task = self.tasks[index]
        return task.deadline_ns if task.guaranteed else float("inf")

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

    def _best_charged_move(self, outcome: Outcome, room: int) -> tuple[int, int] | None:
        """The move that relieves the failing window most per extent: one changes others' costs."""
        weights = self._weights(outcome)
        if outcome.blocker is not None:
            weights[outcome.blocker] -= outcome.kind == "late"

        def load(chosen: Sequence[int]) -> float:
            costs, sections = self.charged(chosen, outcome.preemptible)
            demand = sum(weight * cost for weight, cost in zip(weights, costs, strict=True))
            if outcome.kind != "late":
                return demand
            return demand + max(
                (
                    sections[index]
                    for index in range(len(self.tasks))
                    if self._patience(index) > outcome.critical_ns
                ),
                default=0,
            )

        now = load(outcome.chosen)
        best = 0.0
        found: tuple[int, int] | None = None
        for index, options in enumerate(self.options):
            at = outcome.chosen[index]
            for target in sorted({at + 1, at + 3, at + LOOK_AHEAD, len(options) - 1}):
                if not at < target < len(options):
                    continue
                taken = options[target].extents - options[at].extents
                if taken > room:
                    continue
                chosen = list(outcome.chosen)
                chosen[index] = target
                gain = (now - load(chosen)) / taken
                if gain > best:
                    best, found = gain, (index, target)
        return found

    def _used(self, chosen: Sequence[int]) -> int:
        return sum(options[at].extents for options, at in zip(self.options, chosen, strict=True))

    def _parked(self, preemptible: Collection[int]) -> int:
        return sum(self.tasks[index].parked_extents for index in preemptible)


def _targets(at: int, last: int) -> Sequence[int]:
    near = range(at + 1, min(at + LOOK_AHEAD, last) + 1)
    return near if near[-1] == last else (*near, last)
