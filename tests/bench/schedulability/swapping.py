"""What others would admit: all weights resident, whole tasks swapped, and the same by copies alone.

The costs (all under sporadic non-preemptive EDF, with its exact test, for jobs one at a time):

* resident: C_i, and all weights and the largest workspace fit.
* swap: C_i + (bytes in + bytes out) / bandwidth for a task that is not resident, as RT-Swap (RTAS
  2024) moves them: out before in. Its analysis is not public; this charges its mechanism.
* copy: the same without the way out, as clean weights need none.

Each with the best residency there is, so no heuristic of ours makes them look worse. *Whole*: a
task is resident or not; all maximal resident subsets are tried. *Partial* volumes: r_i bytes of a
task stay resident, one area holds what is swapped, and cost and memory are linear in r_i: a linear
program, to which the failing window of the exact test is added as a constraint until the test
accepts or the program has no solution. It takes bytes, not extents, and so favours swapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import highspy

from tierline_operator.admission.demand import NS, DemandTest, cost_ns, instant_ns
from tierline_operator.planning.request import TaskDemand

MOST_CUTS = 400
NOISE_NS = 1000
"""What the linear program's tolerance may leave open counts as solved."""
GIB = 2.0**30


@dataclass(frozen=True)
class Swapped:
    """A set as swapping sees it; a byte costs `per_byte_s` on the link, one way."""

    test: DemandTest
    compute_s: tuple[float, ...]
    period_s: tuple[float, ...]
    weights: tuple[int, ...]
    workspace: int
    per_byte_s: float

    @classmethod
    def of(cls, tasks: Sequence[TaskDemand], bandwidth_bytes_per_s: float) -> Swapped:
        """All of `tasks` have deadlines."""
        return cls(
            DemandTest(
                [instant_ns(task.period_s) for task in tasks],
                [instant_ns(task.deadline_s) for task in tasks],
            ),
            tuple(sum(task.compute_s) for task in tasks),
            tuple(task.period_s for task in tasks),
            tuple(task.layout.weight_bytes for task in tasks),
            max(task.workspace_bytes for task in tasks),
            1 / bandwidth_bytes_per_s,
        )

    def costs(self, moved: Sequence[float]) -> list[int]:
        """Job times in nanoseconds with so many bytes over the link in each job."""
        pairs = zip(self.compute_s, moved, strict=True)
        return [cost_ns(seconds + count * self.per_byte_s) for seconds, count in pairs]

    def holds(self, moved: Sequence[float]) -> bool:
        """What the exact test says."""
        costs = self.costs(moved)
        return self.test.worst(costs, costs)[0] == "holds"


def resident(swapped: Swapped, fast_bytes: int) -> bool:
    """All weights fit, and nothing is ever moved."""
    fits = sum(swapped.weights) + swapped.workspace <= fast_bytes
    return fits and swapped.holds([0] * len(swapped.weights))


def whole(swapped: Swapped, fast_bytes: int, *, ways: int) -> bool:
    """Some subset resident, the others moved whole; `ways` is 2 with the way out, 1 without."""
    if not swapped.holds([0] * len(swapped.weights)):
        return False
    return any(
        swapped.holds(
            [0 if held else ways * w for held, w in zip(kept, swapped.weights, strict=True)]
        )
        for kept in _maximal(swapped.weights, fast_bytes - swapped.workspace)
    )


def _maximal(weights: Sequence[int], room: int) -> Iterator[tuple[bool, ...]]:
    """Maximal resident subsets that fit together with the largest swapped task."""
    count = len(weights)

    def fits(mask: int) -> bool:
        inside = [w for i, w in enumerate(weights) if mask >> i & 1]
        outside = [w for i, w in enumerate(weights) if not mask >> i & 1]
        return sum(inside) + max(outside, default=0) <= room

    fitting = {mask for mask in range(1 << count) if fits(mask)}
    for mask in fitting:
        if not any(mask | 1 << i in fitting for i in range(count) if not mask >> i & 1):
            yield tuple(bool(mask >> i & 1) for i in range(count))


def partial(swapped: Swapped, fast_bytes: int, *, ways: int) -> bool:
    """Any part of any task resident, the rest moved in each job through one area."""
    room = fast_bytes - swapped.workspace
    count = len(swapped.weights)
    if room <= 0 or not swapped.holds([0] * count):
        return False
    program = _Program(swapped, room, ways)
    for _ in range(MOST_CUTS):
        held = program.solve()
        if held is None:
            return False
        moved = [ways * max(0.0, w - r) for w, r in zip(swapped.weights, held, strict=True)]
        costs = swapped.costs(moved)
        kind, late, critical, blocker = swapped.test.worst(costs, costs)
        if kind == "holds" or (kind == "late" and late < NOISE_NS):
            return True
        if kind != "late":
            return False
        program.cut(critical, blocker)
    return False


class _Program:
    """Resident bytes of each task and bytes of the area (in GiB) that keep the link freest."""

    def __init__(self, swapped: Swapped, room: int, ways: int) -> None:
        self.swapped, self.per_gib_s = swapped, ways * swapped.per_byte_s * GIB
        self.count = len(swapped.weights)
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.setOptionValue("output_flag", False)
        infinite = highspy.kHighsInf
        for weight, period_s in zip(swapped.weights, swapped.period_s, strict=True):
            self.solver.addVar(0.0, weight / GIB)
            self.solver.changeColCost(self.solver.getNumCol() - 1, -self.per_gib_s / period_s)
        self.solver.addVar(0.0, infinite)
        everyone = list(range(self.count + 1))
        self.solver.addRow(-infinite, room / GIB, len(everyone), everyone, [1.0] * len(everyone))
        for index, weight in enumerate(swapped.weights):
            self.solver.addRow(weight / GIB, infinite, 2, [index, self.count], [1.0, 1.0])
        self._at_most([1 / period_s for period_s in swapped.period_s], 1 - 1e-6)

    def cut(self, critical_ns: int, blocker: int | None) -> None:
        """The jobs due in that window, and the blocker's, must fit into it."""
        jobs = [float(jobs) for jobs in self.swapped.test.jobs_due(critical_ns)]
        if blocker is not None:
            jobs[blocker] += 1
        self._at_most(jobs, critical_ns / NS)

    def solve(self) -> list[float] | None:
        """Resident bytes, or None if there is no solution."""
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return [share * GIB for share in self.solver.getSolution().col_value[: self.count]]

    def _at_most(self, jobs: Sequence[float], limit_s: float) -> None:
        """So many jobs of each task take no longer than `limit_s` together."""
        full_s = sum(
            n * (c + w / GIB * self.per_gib_s)
            for n, c, w in zip(jobs, self.swapped.compute_s, self.swapped.weights, strict=True)
        )
        saved = [n * self.per_gib_s for n in jobs]
        indices = list(range(self.count))
        self.solver.addRow(full_s - limit_s, highspy.kHighsInf, self.count, indices, saved)
