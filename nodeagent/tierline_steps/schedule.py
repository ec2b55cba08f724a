"""The order in which a plan runs operators, some of them again, and what is live meanwhile.

A `Schedule` is a list of operators with repetitions; lifetimes follow from it. Each run of an
operator makes new instances of what it writes; an instance lives until the last step that reads it
before the next one of its value is made, and the last instance of a live-out value to the end. This
one representation makes it simple to leave a run out, to move one, and to place instances.

Invariant: each operator runs, and finds what it reads; what is not repeatable runs once, and in the
graph's order; the backward begins when each operator of the forward has run. `peak_bytes` is what
is live at most, each size rounded up to the alignment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tierline_steps.graph import Graph
from tierline_steps.placement import aligned


class Problem:
    """A graph as planners read it: what lies in the arena only, and sizes rounded up."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        live_in = [value.role.is_live_in for value in graph.values]
        self.sizes = [
            0 if fixed else aligned(value.size_bytes)
            for value, fixed in zip(graph.values, live_in, strict=True)
        ]
        self.live_out = [value.role.is_live_out for value in graph.values]
        self.reads = [
            [value for value in operator.reads if not live_in[value]]
            for operator in graph.operators
        ]
        self.writes = [list(operator.writes) for operator in graph.operators]
        self.times = [operator.time_ns for operator in graph.operators]
        self.workspaces = [aligned(operator.workspace_bytes) for operator in graph.operators]
        self.once = [not operator.repeatable for operator in graph.operators]
        self.writer = graph.writer
        self.readers = graph.readers


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An instance: `value` from step `first`, which makes it, to step `last`, both included."""

    value: int
    first: int
    last: int


class Schedule:
    """Operators in the order in which they run. Positions in it are called steps."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        """Leave out runs whose results nothing reads, apart from an operator's first.

        Raises:
            ValueError: an operator reads what is not made yet.
        """
        self.problem = problem
        self.order = _useful(problem, order)
        self.events: list[list[int]] = [[] for _ in problem.sizes]  # step * 2, + 1 where made
        for step, operator in enumerate(self.order):
            for value in problem.reads[operator]:
                if not self.events[value]:
                    name = problem.graph.operators[operator].name
                    raise ValueError(f"step {step}: {name} reads what is not made yet")
                self.events[value].append(step * 2)
            for value in problem.writes[operator]:
                self.events[value].append(step * 2 + 1)
        self.live = self._live_bytes()

    @property
    def peak_bytes(self) -> int:
        """The most that is live during a step."""
        return max(self.live, default=0)

    @property
    def time_ns(self) -> int:
        """How long all steps take, one after another."""
        times = self.problem.times
        return sum(times[operator] for operator in self.order)

    def lifetimes(self) -> list[Lifetime]:
        """All instances, by value and step."""
        return [
            Lifetime(value, first, last)
            for value in range(len(self.events))
            for first, last in self._spans(value)
        ]

    def _spans(self, value: int) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        first = last = -1
        for event in self.events[value]:
            if event & 1:
                if first >= 0:
                    spans.append((first, last))
                first = event >> 1
            last = event >> 1
        if first >= 0:
            end = len(self.order) - 1 if self.problem.live_out[value] else last
            spans.append((first, end))
        return spans

    def _live_bytes(self) -> list[int]:
        change = [0] * (len(self.order) + 1)
        for value, size in enumerate(self.problem.sizes):
            if size:
                for first, last in self._spans(value):
                    change[first] += size
                    change[last + 1] -= size
        live, now = [], 0
        for step, operator in enumerate(self.order):
            now += change[step]
            live.append(now + self.problem.workspaces[operator])
        return live

    def without_needless_runs(self, arena_bytes: int) -> "Schedule":
        """Leave out what ran again although its first results could have stayed; dearest first."""
        found = self
        while True:
            removal = _Removal(found, arena_bytes)
            if not removal.try_all():
                return found
            kept = [one for step, one in enumerate(found.order) if step not in removal.dead]
            found = Schedule(self.problem, kept)


def _useful(problem: Problem, order: Sequence[int]) -> list[int]:
    first: dict[int, int] = {}
    for step, operator in enumerate(order):
        first.setdefault(operator, step)
    needed = list(problem.live_out)
    kept = []
    for step in reversed(range(len(order))):
        operator = order[step]
        if first[operator] != step and not any(needed[v] for v in problem.writes[operator]):
            continue
        kept.append(operator)
        for value in problem.writes[operator]:
            needed[value] = False
        for value in problem.reads[operator]:
            needed[value] = True
    return kept[::-1]


class _Removal:
    """One pass over the runs of a sequence that are not an operator's first."""

    def __init__(self, schedule: Schedule, arena_bytes: int) -> None:
        self.schedule, self.problem = schedule, schedule.problem
        self.arena_bytes = arena_bytes
        self.events, self.live = schedule.events, schedule.live
        self.dead: set[int] = set()
        self.first: set[int] = set()
        seen: set[int] = set()
        for step, operator in enumerate(schedule.order):
            if operator not in seen:
                seen.add(operator)
                self.first.add(step)

    def try_all(self) -> bool:
        """Whether any run was left out; the sequence's own lists are spent afterwards."""
        order, times = self.schedule.order, self.problem.times
        again = [step for step in range(len(order)) if step not in self.first]
        for step in sorted(again, key=lambda one: -times[order[one]]):
            if step not in self.dead and self._is_needless(step):
                self._leave_out(step)
        return bool(self.dead)

    def _is_needless(self, step: int) -> bool:
        """Whether the instances before can live until the next are made, within the arena."""
        gaps = []
        for value in self.problem.writes[self.schedule.order[step]]:
            events = self.events[value]
            at = bisect_left(events, step * 2 + 1)
            is_read = at + 1 < len(events) and not events[at + 1] & 1
            if not is_read and not (self.problem.live_out[value] and at + 1 == len(events)):
                continue
            if self.problem.sizes[value]:
                gaps.append((events[at - 1] >> 1, self.problem.sizes[value]))
        if not gaps:
            return True
        gaps.sort()
        more = 0
        for number, (last, size) in enumerate(gaps):
            more += size
            until = gaps[number + 1][0] + 1 if number + 1 < len(gaps) else step
            if last + 1 < until and max(self.live[last + 1 : until]) + more > self.arena_bytes:
                return False
        return True

    def _leave_out(self, step: int) -> None:
        todo = [step]
        while todo:
            step = todo.pop()
            self.dead.add(step)
            operator = self.schedule.order[step]
            self.live[step] -= self.problem.workspaces[operator]
            for value in self.problem.writes[operator]:
                self._remove(value, step * 2 + 1)
            for value in self.problem.reads[operator]:
                self._remove(value, step * 2)
                made = self._maker(value, step)
                if made not in self.first and made not in self.dead and not self._is_used(made):
                    todo.append(made)

    def _remove(self, value: int, event: int) -> None:
        self._count(value, -1)
        events = self.events[value]
        del events[bisect_left(events, event)]
        self._count(value, 1)

    def _count(self, value: int, sign: int) -> None:
        size = self.problem.sizes[value] * sign
        if size:
            live = self.live
            for first, last in self.schedule._spans(value):
                live[first : last + 1] = [one + size for one in live[first : last + 1]]

    def _maker(self, value: int, step: int) -> int:
        events = self.events[value]
        at = bisect_right(events, step * 2) - 1
        while not events[at] & 1:
            at -= 1
        return events[at] >> 1

    def _is_used(self, step: int) -> bool:
        for value in self.problem.writes[self.schedule.order[step]]:
            events = self.events[value]
            at = bisect_left(events, step * 2 + 1)
            if at + 1 == len(events):
                if self.problem.live_out[value]:
                    return True
            elif not events[at + 1] & 1:
                return True
        return False
