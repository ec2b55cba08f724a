"""A plan for a graph under a bound on memory, or why there is none.

1. The floor: where the graph needs more than the budget whatever the order, that is the answer.
2. Seeds: the graph's own order if it fits; else runs within the arena (`eviction`) of that order
   and of the fastest ones through a row of stages (`sweeps`) for about as much, by several tastes,
   each without its needless repetitions. First a few, and all if none of these fits.
3. Addresses, for the fastest of these. If none fits, seeds for as much less as they were above.
4. Search, as long as it is told to go on: the other seeds; then force values out for a while, leave
   out what is needless then, keep what is no slower and fits.

Every plan that it returns has passed `verify`. What it does not find may exist: `NotFound` says no
more than what was reached; only the floor, and a bound, say `Infeasible`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from random import Random

from tierline_steps.bound import bound
from tierline_steps.composing import composed
from tierline_steps.eviction import Taste, evicted
from tierline_steps.graph import Graph
from tierline_steps.placement import GoOn, aligned
from tierline_steps.plan import Infeasible, NotFound, Plan
from tierline_steps.schedule import Problem, Schedule
from tierline_steps.stages import Stages
from tierline_steps.sweeps import Sweeps
from tierline_steps.verify import verify

_TASTES = (
    *(Taste(0.2, 0.0), Taste(1.0, 0.3), Taste(0.0, 0.0), Taste(0.5, 0.3), Taste(1.5, 1.0)),
    *(Taste(0.2, 0.3), Taste(0.0, 0.3), Taste(1.0, 0.0), Taste(0.2, 1.0), Taste(0.0, 1.0)),
)
"""None is best for all: which leads to half the time of another depends on graph and budget."""
_STAGES = (28, 40)
_SLOTS = 100
_SHARES = (1.04, 1.12, 1.08, 1.0, 1.16, 1.24)
"""Of what is there, for which a way through the stages is asked: to let a little of it go where it
does not fit is better than a way that does without it everywhere."""
_MOST_SHARE = 1.3
_ROOMS = 8
_PLACED = 3
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
    known: dict[int, Sweeps] = field(default_factory=dict)
    problem: Problem = field(init=False)
    best: Schedule = field(init=False)

    def __post_init__(self) -> None:
        self.problem = Problem(self.graph)
        self.arena_bytes = self.budget_bytes - self.graph.live_in_bytes
        self.base = list(range(len(self.graph.operators)))

    def run(self) -> Plan | None:
        """The first that fits with its addresses, and then faster ones."""
        room = aligned(self.arena_bytes)
        for _ in range(_ROOMS):
            few = [*islice(self._runs(room), 1), *islice(self._staged(room, 0), 2)]
            seeds = self._fitting(few, room) or self._fitting(self._all(room), room)
            tops = []
            for schedule in sorted(seeds, key=lambda one: one.time_ns)[:_PLACED]:
                found = self._placed(schedule)
                if found.arena_bytes <= self.arena_bytes:
                    return self._faster(schedule, found, room)
                tops.append(found.arena_bytes)
            if not tops:
                return None
            room = min(room * self.arena_bytes // min(tops), room * 199 // 200)
        return None

    def _placed(self, schedule: Schedule) -> Plan:
        left = iter(range(_PLACEMENTS))
        found = composed(
            schedule, self.budget_bytes, lambda: next(left, None) is not None, self.rng
        )
        self._reached(found.arena_bytes)
        return found

    def _reached(self, arena_bytes: int) -> None:
        self.least_bytes = min(self.least_bytes, arena_bytes + self.graph.live_in_bytes)

    def _fitting(self, orders: Iterable[list[int]], room: int) -> list[Schedule]:
        """What takes no more than `room` apart from addresses, without what is needless."""
        found = []
        for order in orders:
            schedule = Schedule(self.problem, order)
            if schedule.peak_bytes <= room:
                found.append(schedule.without_needless_runs(room))
            else:
                self._reached(schedule.peak_bytes)
        return found

    def _all(self, room: int) -> Iterator[list[int]]:
        for number in range(len(_STAGES)):
            yield from self._staged(room, number)
        yield from self._runs(room)

    def _runs(self, room: int) -> Iterator[list[int]]:
        """The graph's own order, run within `room`."""
        if Schedule(self.problem, self.base).peak_bytes <= room:
            yield self.base
            return
        for taste in _TASTES:
            order = evicted(self.problem, self.base, room, taste)
            if order is not None:
                yield order

    def _staged(self, room: int, number: int) -> Iterator[list[int]]:
        """Ways through the stages, run within `room`."""
        if not 0 < self.graph.backward < len(self.base):
            return
        sweeps = self._sweeps(number)
        for taste in _TASTES[:2]:
            for share in _SHARES:
                way = sweeps.order(int(share * room))
                order = way and evicted(self.problem, way, room, taste)
                if order:
                    yield order

    def _sweeps(self, number: int) -> Sweeps:
        if number not in self.known:
            stages = Stages(self.problem, _STAGES[number])
            self.known[number] = Sweeps(stages, int(_MOST_SHARE * self.arena_bytes), _SLOTS)
        return self.known[number]

    def _faster(self, best: Schedule, found: Plan, room: int) -> Plan:
        """Until there is no more time, or nothing runs again."""
        trials = chain(self._others(room), self._variations(room))
        while best.time_ns > self.graph.time_ns and self.go_on():
            self.best = best
            trial = next(trials)
            if trial is None or trial.time_ns > best.time_ns:
                continue
            if trial.time_ns < best.time_ns:
                placed = self._placed(trial)
                if placed.arena_bytes > self.arena_bytes:
                    continue
                found = placed
            best = trial
        return found

    def _others(self, room: int) -> Iterator[Schedule | None]:
        """All seeds, for what the addresses had room for, and for all there is."""
        for some in dict.fromkeys((room, (room + self.arena_bytes) // 2)):
            for order in self._all(some):
                yield next(iter(self._fitting([order], some)), None)

    def _variations(self, room: int) -> Iterator[Schedule | None]:
        """Of the best so far, without end."""
        while True:
            trial = self._varied(self.best)
            fits = trial is not None and trial.peak_bytes <= room
            yield trial.without_needless_runs(room) if trial and fits else None

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
