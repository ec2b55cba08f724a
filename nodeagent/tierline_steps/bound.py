"""Bounds that no plan can beat: the least memory, and the least time within a budget.

`floor`. While an operator runs, all live-in values are there, and in the arena, without overlap,
what it reads (live-in values apart), what it writes and its workspace; at the end all live-out
values are. Offsets are aligned, so of what lies in the arena at once all but the last take their
size rounded up. The largest of these sums is a bound; it says nothing of what else must be there.

`bound`. Cut an execution of any plan at T0, the end of the first run of one operator q (the cut).
For each operator o let before[o] and after[o] say whether it runs (at least once) up to T0, and
afterwards; for each value x kept[x] whether an instance of x has bytes of the arena just before
T0, and moved[x] whether a copy of x to the host is over by then and one from the host starts later.
Then, whatever the order, the number of re-executions, the addresses and the waits,
1. before is 1 for q and all that q needs, 0 for all that need q; before + after >= 1 for all, and
   = 1 for what is not repeatable;
2. what runs before has its operands by then: before[o] <= before[writer of x] for each x it reads;
3. what runs after finds its operands: after[o] <= after[writer of x] + kept[x] + moved[x]. For the
   instance that it reads was written after T0 by its operator; or before, and then it has its
   bytes at T0, as it is read later; or by a copy. A copy that began before T0 has its bytes at T0.
   For one that began later x is on the host: since before T0 (moved), or its copy to the host is
   not over at T0, and reads an instance of which the same holds: it was written after T0 by its
   operator or has its bytes at T0. (No copy wrote that one: a value goes to the host once.)
   Likewise each live-out x, which the program reads at the end: after + kept + moved >= 1;
4. kept[x] and moved[x] are at most before[writer of x];
5. at T0 what q reads and writes, its workspace, and all kept values fit into the arena;
6. T0 is at least the times of all before, and the copies to the host of all moved values; the rest
   is at least the times of all after, and the copies back of all moved values: each queue does one
   thing at a time, and no link is faster than alone.
So the least T0 + rest over all 0/1 vectors with 1 to 6 is a lower bound, and the one over all
vectors in [0, 1], a linear program, too. What q reads and writes is at T0 whatever is kept.

The solver (HiGHS, extra `exact`) calculates in floating point and to a tolerance. Nothing depends
on it: any y >= 0, one number for each row of A v >= b, proves for all v in the box of 0 <= v <= 1
    cost v >= y b + (cost - y A) v >= y b + sum over columns of min(0, (cost - y A)[column])
(weak duality), and this is calculated with integers, from the solver's y rounded. A row that the
budget makes impossible is told apart in the same way, by the least excess over the budget.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Infeasible, Links

_CUTS = 4
_ONE = 1 << 40
"""Multipliers are integers, in parts of this."""
_NS = 10**9


@dataclass(frozen=True, slots=True)
class Bound:
    """No plan within the budget finishes earlier.

    `cut` is the operator at which the proof cuts the step; without one it is only that each
    operator runs once (nothing better was found, or the extra `exact` is missing).
    """

    time_ns: int
    cut: int | None


def floor(graph: Graph) -> Infeasible:
    """The bytes under which there is no plan, and the operator that needs them."""
    outs = [value.size_bytes for value in graph.values if value.role.is_live_out]
    least = Infeasible(
        graph.live_in_bytes + _least_bytes(outs),
        None,
        "weights and inputs, and all gradients and results at the end",
    )
    for index, operator in enumerate(graph.operators):
        need = graph.live_in_bytes + _least_bytes(_while_it_runs(graph, index))
        if need > least.least_bytes:
            reason = f"weights and inputs, and operands, results and workspace of {operator.name}"
            least = Infeasible(need, index, reason)
    return least


def _while_it_runs(graph: Graph, operator: int) -> Iterator[int]:
    """The sizes of what one operator has in the arena."""
    about = graph.operators[operator]
    for value in chain(about.reads, about.writes):
        if not graph.values[value].role.is_live_in:
            yield graph.values[value].size_bytes
    yield about.workspace_bytes


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _least_bytes(sizes: Iterable[int]) -> int:
    """The smallest arena that has all these at once: the one at the top needs no rounding."""
    sizes = list(sizes)
    rounding = max((_aligned(size) - size for size in sizes), default=0)
    return sum(map(_aligned, sizes)) - rounding


def bound(graph: Graph, budget_bytes: int, links: Links | None) -> Bound | Infeasible:
    """The best of some cuts; Infeasible if no plan fits into the budget."""
    least = floor(graph)
    if budget_bytes < least.least_bytes:
        return least
    best = Bound(graph.time_ns, None)
    highs = _highs()
    relations = _Relations(graph)
    for cut in relations.cuts() if highs else ():
        found = _Program(relations, cut, budget_bytes, links).solve(highs)
        if isinstance(found, Infeasible):
            return found
        if found is not None and found.time_ns > best.time_ns:
            best = found
    return best


class _Relations:
    """Which operators need which, as sets of bits."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.needs = [0] * len(graph.operators)
        for index, operator in enumerate(graph.operators):
            for value in operator.reads:
                writer = graph.writer[value]
                if writer >= 0:
                    self.needs[index] |= self.needs[writer] | 1 << writer

    @cached_property
    def needed_by(self) -> list[int]:
        """For each operator those that need it."""
        found = [0] * len(self.needs)
        for index in reversed(range(len(found))):
            for value in self.graph.operators[index].writes:
                for reader in self.graph.readers[value]:
                    found[index] |= found[reader] | 1 << reader
        return found

    def cuts(self) -> list[int]:
        """In each part of the step the operator with the most to keep while it runs.

        What stands neither before nor after the cut can run on either side, so that the program
        of such a cut knows little of it.
        """
        count = len(self.needs)
        live = self._live_bytes()
        related = [
            a.bit_count() + b.bit_count() for a, b in zip(self.needs, self.needed_by, strict=True)
        ]
        parts = (range(count * n // _CUTS, count * (n + 1) // _CUTS) for n in range(_CUTS))
        return [max(part, key=lambda one: live[one] * related[one] ** 2) for part in parts if part]

    def _live_bytes(self) -> list[int]:
        """Bytes that are there while each operator runs, in the graph's order."""
        change = [0] * (len(self.needs) + 2)
        for value, writer in enumerate(self.graph.writer):
            last = max(self.graph.readers[value], default=writer)
            if writer >= 0 and last > writer:
                change[writer + 1] += self.graph.values[value].size_bytes
                change[last] -= self.graph.values[value].size_bytes
        live = [0]
        for more in change[1:]:
            live.append(live[-1] + more)
        for operator, about in enumerate(self.graph.operators):
            for value in (*about.reads, *about.writes):
                writer = self.graph.writer[value]
                if writer >= 0 and not (
                    writer < operator < max(self.graph.readers[value], default=writer)
                ):
                    live[operator] += self.graph.values[value].size_bytes
            live[operator] += about.workspace_bytes
        return live


_START, _REST, _EXCESS = range(3)
"""The columns that are no choices: T0, the time after it, and bytes over the budget."""


@dataclass
class _Program:
    """The linear program of one cut: rows of integers, of which each sum is at least a bound."""

    relations: _Relations
    cut: int
    budget_bytes: int
    links: Links | None
    columns: int = 3
    rows: list[tuple[dict[int, int], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.relations.graph
        needed, needing = self.relations.needs[self.cut], self.relations.needed_by[self.cut]
        self.first = needed | 1 << self.cut
        self.later = needing
        self.there = {*graph.operators[self.cut].reads, *graph.operators[self.cut].writes}
        self.before: dict[int, int] = {}
        self.after: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        for operator, about in enumerate(graph.operators):
            if not (self.first | self.later) >> operator & 1:
                self.before[operator] = self._column()
            if self.later >> operator & 1:
                continue
            if about.repeatable or operator in self.before:
                self.after[operator] = self._column()
            for value in about.writes:
                if value not in self.there:
                    self.kept[value] = self._column()
                    if self.links is not None:
                        self.moved[value] = self._column()
        self._add_times()
        self._add_memory()
        self._add_operators()

    def _column(self) -> int:
        self.columns += 1
        return self.columns - 1

    def _add_times(self) -> None:
        graph = self.relations.graph
        start, rest, away, back = {_START: 1}, {_REST: 1}, {_START: 1}, {_REST: 1}
        must_start = must_rest = 0
        for operator, about in enumerate(graph.operators):
            if self.first >> operator & 1:
                must_start += about.time_ns
            elif operator in self.before:
                start[self.before[operator]] = -about.time_ns
            if self.later >> operator & 1:
                must_rest += about.time_ns
            elif operator in self.after:
                rest[self.after[operator]] = -about.time_ns
        if self.links is not None:
            for value, column in self.moved.items():
                size = graph.values[value].size_bytes
                away[column] = -self.links.latency_ns - int(size * _NS / self.links.d2h)
                back[column] = -self.links.latency_ns - int(size * _NS / self.links.h2d)
        self.rows += [(start, must_start), (rest, must_rest), (away, 0), (back, 0)]

    def _add_memory(self) -> None:
        graph = self.relations.graph
        kept = {value: graph.values[value].size_bytes for value in self.kept}
        runs = [*_while_it_runs(graph, self.cut)]
        row = {self.kept[value]: -_aligned(size) for value, size in kept.items()}
        room = self.budget_bytes - graph.live_in_bytes - sum(map(_aligned, runs))
        room += max(_aligned(size) - size for size in chain(kept.values(), runs))
        self.rows.append(({**row, _EXCESS: 1}, -room))

    def _add_operators(self) -> None:
        graph = self.relations.graph
        for operator, about in enumerate(graph.operators):
            if operator in self.before:
                before, after = self.before[operator], self.after[operator]
                self.rows.append(({before: 1, after: 1}, 1))
                if not about.repeatable:
                    self.rows.append(({before: -1, after: -1}, -1))
                for value in about.reads:
                    if graph.writer[value] in self.before:
                        self.rows.append(({self.before[graph.writer[value]]: 1, before: -1}, 0))
            for value in about.reads:
                self._is_found(value, operator)
        for value, about_value in enumerate(graph.values):
            writer = graph.writer[value]
            if about_value.role.is_live_out:
                self._is_found(value, None)
            for column in (self.kept.get(value), self.moved.get(value)):
                if column is not None and writer in self.before:
                    self.rows.append(({self.before[writer]: 1, column: -1}, 0))

    def _is_found(self, value: int, reader: int | None) -> None:
        """After T0, by an operator or (None) by the program."""
        writer = self.relations.graph.writer[value]
        if writer < 0 or self.later >> writer & 1 or value in self.there:
            return
        sources = (self.after.get(writer), self.kept.get(value), self.moved.get(value))
        row = {column: 1 for column in sources if column is not None}
        if reader is None or self.later >> reader & 1:
            self.rows.append((row, 1))
        elif reader in self.after:
            self.rows.append(({**row, self.after[reader]: -1}, 0))

    def solve(self, highs: Any) -> Bound | Infeasible | None:
        """The proven bound; None if there is none, or if the solver does not come to an end."""
        costs = {_START: 1, _REST: 1}
        multipliers = self._multipliers(highs, costs)
        if multipliers is not None:
            return Bound(self._proved(costs, multipliers) // _ONE, self.cut)
        costs = {_START: 0, _REST: 0, _EXCESS: 1}
        multipliers = self._multipliers(highs, costs)
        excess = 0 if multipliers is None else -(-self._proved(costs, multipliers) // _ONE)
        if excess <= 0:
            return None
        name = self.relations.graph.operators[self.cut].name
        reason = f"weights and inputs, and what cannot be made again after {name}"
        return Infeasible(self.budget_bytes + excess, self.cut, reason)

    def _multipliers(self, highs: Any, costs: dict[int, int]) -> list[int] | None:
        """One for each row, in parts of _ONE; None if there is no solution. Only a proposal.

        What the solver sees is in shares of the step's time and of the budget.
        """
        time, memory = max(1, self.relations.graph.time_ns), max(1, self.budget_bytes)
        row_units = [time, time, time, time, memory] + [1] * (len(self.rows) - 5)
        units = [time, time, memory] + [1] * (self.columns - 3)
        free = highs.kHighsInf
        model = highs.HighsLp()
        model.num_col_, model.num_row_ = self.columns, len(self.rows)
        model.col_cost_ = [float(costs.get(column, 0)) for column in range(self.columns)]
        model.col_lower_ = [0.0] * self.columns
        model.col_upper_ = [free, free, free if _EXCESS in costs else 0.0]
        model.col_upper_ += [1.0] * (self.columns - 3)
        model.row_lower_ = [
            least / unit for (_, least), unit in zip(self.rows, row_units, strict=True)
        ]
        model.row_upper_ = [free] * len(self.rows)
        model.a_matrix_.format_ = highs.MatrixFormat.kRowwise
        starts, indices, values = [0], [], []
        for (terms, _), unit in zip(self.rows, row_units, strict=True):
            for column, factor in terms.items():
                indices.append(column)
                values.append(factor * units[column] / unit)
            starts.append(len(indices))
        model.a_matrix_.start_, model.a_matrix_.index_ = starts, indices
        model.a_matrix_.value_ = values
        solver = _quiet(highs)
        solver.passModel(model)
        solver.run()
        if solver.getModelStatus() != highs.HighsModelStatus.kOptimal:
            return None
        scale = (memory if _EXCESS in costs else time) * _ONE
        found = solver.getSolution().row_dual
        return [max(0, int(one * scale / unit)) for one, unit in zip(found, row_units, strict=True)]

    def _proved(self, costs: dict[int, int], multipliers: list[int]) -> int:
        """The weak dual's value, in parts of _ONE: the least cost of all that the rows admit.

        A column without a bound adds nothing if its cost minus its rows' multipliers is not below
        0: these are made smaller where they are too large. An excess that costs nothing is 0.
        """
        multipliers = list(multipliers)
        for column, cost in costs.items():
            rest = cost * _ONE
            for index, (terms, _) in enumerate(self.rows):
                if column in terms:
                    multipliers[index] = min(multipliers[index], rest)
                    rest -= multipliers[index]
        reduced = [0] * self.columns
        value = 0
        for multiplier, (terms, least) in zip(multipliers, self.rows, strict=True):
            value += multiplier * least
            for column, factor in terms.items():
                reduced[column] -= multiplier * factor
        return value + sum(min(0, one) for one in reduced[3:])


def _highs() -> Any:
    try:
        import highspy  # noqa: PLC0415 - an extra that most do not need
    except ImportError:
        return None
    return highspy


def _quiet(highs: Any) -> Any:
    """A solver that prints nothing.

    HiGHS 1.16 prints its name when the constructor enables callbacks, before one can tell it not
    to; what a program prints is its own.
    """

    def enable(solver: Any) -> None:
        solver.silent()
        highs.Highs.enableCallbacks(solver)

    solver = type("Quiet", (highs.Highs,), {"enableCallbacks": enable})()
    solver.silent()
    return solver
