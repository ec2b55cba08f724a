"""A plan for a graph under a bound on memory, or why there is none.

1. The floor: where the graph needs more than the budget whatever the order, that is the answer.
2. Seeds: the graph's own order if it fits, and runs within the arena by several tastes
   (`eviction`), each without its needless repetitions.
3. Addresses, for the fastest of these. If none fits, seeds for a little less than the arena.
4. Search, as long as it is told to go on: force values out for a while, leave out what is needless
   then, keep what is no slower and fits.

Every plan that it returns has passed `verify`. What it does not find may exist: `NotFound` says no
more than what was reached; only the floor, and a bound, say `Infeasible`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from tierline_steps.bound import bound
from tierline_steps.composing import composed
from tierline_steps.eviction import Taste, evicted
from tierline_steps.graph import Graph
from tierline_steps.placement import GoOn, aligned
from tierline_steps.plan import Infeasible, NotFound, Plan
from tierline_steps.schedule import Problem, Schedule
from tierline_steps.verify import verify

_TASTES = (
    *(Taste(0.2, 0.0), Taste(1.0, 0.3), Taste(0.0, 0.0), Taste(0.5, 0.3), Taste(1.5, 1.0)),
    *(Taste(0.2, 0.3), Taste(0.0, 0.3), Taste(1.0, 0.0), Taste(0.2, 1.0), Taste(0.0, 1.0)),
)
"""None is best for all: which leads to half the time of another depends on graph and budget."""
_ROOMS = (1.0, 0.985, 0.96, 0.93, 0.9, 0.86, 0.8)
"""Shares of the arena that are planned for, one after another, until the addresses fit into all."""
_PLACED = 4
_PLACEMENTS = 25
_LEAST_GAP = 5


def plan(
    graph: Graph, budget_bytes: int, *, seed: int, go_on: GoOn
) -> Plan | Infeasible | NotFound:
    """A verified plan whose arena and live-in values are within the budget."""
    least = bound(graph, budget_bytes, None)
    if isinstance(least, Infeasible):
        return least
    search = _Search(graph, budget_bytes, Random(seed), go_on)  # noqa: S311 - a search
    found = search.run()
    if found is None:
        return NotFound(search.least_bytes, least.time_ns)
    verify(graph, found)
    return found


@dataclass
class _Search:
    graph: Graph
    budget_bytes: int
    rng: Random
    go_on: GoOn
    least_bytes: int = 1 << 62
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        self.problem = Problem(self.graph)
        self.arena_bytes = self.budget_bytes - self.graph.live_in_bytes

    def run(self) -> Plan | None:
        """The first that fits with its addresses, and then faster ones."""
        for share in _ROOMS:
            room = int(aligned(self.arena_bytes) * share)
            seeds = sorted(self._seeds(room), key=lambda one: one.time_ns)
            for schedule in seeds[:_PLACED]:
                found = self._placed(schedule)
                if found is not None:
                    return self._faster(schedule, found, room)
        return None

    def _placed(self, schedule: Schedule) -> Plan | None:
        left = iter(range(_PLACEMENTS))
        found = composed(
            schedule,
            self.budget_bytes,
            lambda: next(left, None) is not None and self.go_on(),
            self.rng,
        )
        self._reached(found.arena_bytes)
        return found if found.arena_bytes <= self.arena_bytes else None

    def _reached(self, arena_bytes: int) -> None:
        self.least_bytes = min(self.least_bytes, arena_bytes + self.graph.live_in_bytes)

    def _seeds(self, room: int) -> Iterator[Schedule]:
        """What fits into `room` apart from addresses."""
        base = list(range(len(self.graph.operators)))
        whole = Schedule(self.problem, base)
        if whole.peak_bytes <= room:
            yield whole
            return
        for taste in _TASTES:
            order = evicted(self.problem, base, room, taste)
            if order is None:
                continue
            schedule = Schedule(self.problem, order)
            if schedule.peak_bytes <= room:
                yield schedule.without_needless_runs(room)
            else:
                self._reached(schedule.peak_bytes)

    def _faster(self, best: Schedule, found: Plan, room: int) -> Plan:
        """Until there is no more time, or nothing runs again."""
        while best.time_ns > self.graph.time_ns and self.go_on():
            trial = self._varied(best)
            if trial is None or trial.peak_bytes > room:
                continue
            trial = trial.without_needless_runs(room)
            if trial.time_ns > best.time_ns:
                continue
            if trial.time_ns < best.time_ns:
                placed = self._placed(trial)
                if placed is None:
                    continue
                found = placed
            best = trial
        return found

    def _varied(self, schedule: Schedule) -> Schedule | None:
        """Some values are made again before a later use, as if they had gone meanwhile."""
        rng, problem = self.rng, self.problem
        inserted: list[tuple[int, int]] = []
        for _ in range(1 + rng.randrange(6)):
            value = rng.randrange(len(problem.sizes))
            operator = problem.writer[value]
            events = schedule.events[value]
            if (
                operator < 0
                or problem.once[operator]
                or problem.sizes[value] * 500 < self.arena_bytes
            ):
                continue
            uses = [
                after >> 1
                for before, after in pairwise(events)
                if not after & 1 and (after >> 1) - (before >> 1) > _LEAST_GAP
            ]
            if uses:
                inserted.append((rng.choice(uses), operator))
        if not inserted:
            return None
        order = list(schedule.order)
        for step, operator in sorted(inserted, reverse=True):
            order.insert(step, operator)
        return Schedule(problem, order)
