"""The least fast memory with which a small set holds: the optimum, to know how far the search is.

For given rings, every task has some points of its curve to choose from, and where jobs yield each
may be preemptible or not. A mixed-integer program chooses: y[i,o,p] = 1 if task i takes point o,
preemptible (p = 1) or not; g[i] is what taking over the device costs the others. It minimises

    sum extents y + sum parked y[.,.,1]      subject to, for every window t of the demand test,
    sum n_i(t) (sum cost y + g[i]) + q_j <= t      for each j with D_j > t, and without any,
    g[i] >= sum_o (penalty[j,o] + resume) y[j,o,1]         for each j with D_j > D_i,

where with ring-keeping a fully resident i pays `resume` only, and q_j is the layer if preemptible,
else the whole job with its g. That is admission/preemption.py, linear. There are far too many
windows: the failing window of the exact test is added until the test accepts, so the last program
is a relaxation whose solution is feasible, hence optimal (cutting planes; Kelley 1960).

Solver: HiGHS (extra `exact`). Windows that the solver's tolerance leaves open by microseconds are
tightened by 20 us. What it does not do: choose rings, or resident sets that no curve holds, or
plan sets with BestEffort tasks (ValueError).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import highspy

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.search.residents import Outcome, Search

MOST_CUTS: Final = 300
TIGHTER_MS: Final = 0.02
_MS: Final = 1e6
"""Nanoseconds: the program counts in milliseconds."""


def least_memory(search: Search) -> Outcome | None:
    """The outcome that holds with the fewest extents, rings not counted; None if none holds.

    Raises ValueError for sets with BestEffort tasks.
    """
    if search.idle:
        raise ValueError("the exact planner takes tasks with deadlines only")
    program = _Program(search)
    seen: dict[int, int] = {}
    for _ in range(MOST_CUTS):
        outcome = program.solve()
        if outcome is None or outcome.ok:
            return outcome
        if outcome.kind != "late":
            return None
        seen[outcome.critical_ns] = times = seen.get(outcome.critical_ns, 0) + 1
        program.cut(outcome.critical_ns, (times - 1) * TIGHTER_MS)
    return None


@dataclass(frozen=True)
class _Choice:
    """A column: task, point, whether it is preemptible, and what admission charges for it."""

    task: int
    at: int
    preemptible: bool
    extents: int
    cost_ms: float
    section_ms: float
    """Without what is charged for preempting."""
    penalty_ms: float
    resident: bool


class _Program:
    def __init__(self, search: Search) -> None:
        self.search = search
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.optimal = highspy.HighsModelStatus.kOptimal
        self.infinite = highspy.kHighsInf
        self.integer = highspy.HighsVarType.kInteger
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
        self.resume_ms = max(task.resume_ns for task in search.tasks) / _MS
        self.columns = [
            choice
            for task in range(len(search.tasks))
            for choice in self._choices(task, preempts=self._preempts)
        ]
        for number, choice in enumerate(self.columns):
            self.solver.addVar(0.0, 1.0)
            self.solver.changeColIntegrality(number, self.integer)
            self.solver.changeColCost(number, float(choice.extents))
        count = len(search.tasks)
        self.charge = [len(self.columns) + task for task in range(count)]
        self.charge_unless_preemptible = [len(self.columns) + count + task for task in range(count)]
        for _ in range(2 * count):
            self.solver.addVar(0.0, self.infinite)
        for task in range(count):
            self._row(1.0, 1.0, {n: 1.0 for n, c in enumerate(self.columns) if c.task == task})
        if self._preempts:
            self._charges()
        load = {n: c.cost_ms / (search.tasks[c.task].period_ns / _MS) for n, c in self._numbered()}
        for task, column in enumerate(self.charge):
            load[column] = 1 / (search.tasks[task].period_ns / _MS)
        self._row(-self.infinite, 1.0, load)

    @property
    def _preempts(self) -> bool:
        return self.search.scheduling is not Scheduling.NON_PREEMPTIVE

    def cut(self, critical_ns: int, tighter_ms: float) -> None:
        """That window must hold, whichever task blocks it."""
        jobs = self.search.test.jobs_due(critical_ns)
        demand = {n: jobs[c.task] * c.cost_ms for n, c in self._numbered()}
        for task, column in enumerate(self.charge):
            demand[column] = float(jobs[task])
        limit_ms = critical_ns / _MS - tighter_ms
        self._row(-self.infinite, limit_ms, demand)
        for task, other in enumerate(self.search.tasks):
            if other.deadline_ns <= critical_ns:
                continue
            blocked = dict(demand)
            for n, choice in self._numbered():
                if choice.task == task:
                    blocked[n] += choice.section_ms
            blocked[self.charge_unless_preemptible[task]] = 1.0
            self._row(-self.infinite, limit_ms, blocked)

    def solve(self) -> Outcome | None:
        """What the test says of the cheapest choices so far."""
        self.solver.run()
        if self.solver.getModelStatus() != self.optimal:
            return None
        values: Sequence[float] = self.solver.getSolution().col_value
        picked = [c for n, c in self._numbered() if values[n] > 0.5]
        chosen = [c.at for c in sorted(picked, key=lambda choice: choice.task)]
        return self.search.judge(chosen, frozenset(c.task for c in picked if c.preemptible))

    def _choices(self, task: int, *, preempts: bool) -> list[_Choice]:
        choices = []
        for at, option in enumerate(self.search.options[task]):
            for preemptible in (False, True) if preempts else (False,):
                job = self.search.tasks[task].planned(option, preemptible=preemptible)
                section = min(job.layer_ns, job.section_ns) if preemptible else job.section_ns
                parked = self.search.tasks[task].parked_extents if preemptible else 0
                choices.append(
                    _Choice(
                        task,
                        at,
                        preemptible,
                        option.extents + parked,
                        job.cost_ns / _MS,
                        section / _MS,
                        job.penalty_ns / _MS,
                        not job.streams,
                    )
                )
        return choices

    def _charges(self) -> None:
        """Rows that tie the charges to which tasks are preemptible with which plan."""
        tasks = self.search.tasks
        keeps = self.search.scheduling is Scheduling.RING_KEEPING
        most = max(c.penalty_ms for c in self.columns) + self.resume_ms
        for task, mine in enumerate(tasks):
            relief = {n: most for n, c in self._numbered() if c.task == task and c.resident}
            for other, theirs in enumerate(tasks):
                if theirs.deadline_ns <= mine.deadline_ns:
                    continue
                yields = [(n, c) for n, c in self._numbered() if c.task == other and c.preemptible]
                lost = {n: -(c.penalty_ms + self.resume_ms) for n, c in yields}
                self._row(
                    0.0,
                    self.infinite,
                    {self.charge[task]: 1.0, **lost, **(relief if keeps else {})},
                )
                self._row(
                    0.0,
                    self.infinite,
                    {self.charge[task]: 1.0, **{n: -self.resume_ms for n, _ in yields}},
                )
            own = {n: most for n, c in self._numbered() if c.task == task and c.preemptible}
            unless = {self.charge_unless_preemptible[task]: 1.0, self.charge[task]: -1.0}
            self._row(0.0, self.infinite, {**unless, **own})

    def _numbered(self) -> enumerate[_Choice]:
        return enumerate(self.columns)

    def _row(self, low: float, high: float, terms: dict[int, float]) -> None:
        used = {column: value for column, value in terms.items() if value}
        self.solver.addRow(low, high, len(used), list(used), list(used.values()))
