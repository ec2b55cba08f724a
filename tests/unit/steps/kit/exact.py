"""The optimum of small graphs by trying everything: what bounds and planners are held against.

Shortest paths (Dijkstra) over all states of memory, host and queues. At any moment one may let a
value go, start an operator or a copy on a queue that is free, or wait for the next of them to end;
as each start waits for an end at most, no plan is faster. Addresses are not looked for: what lies
in the arena at once must fit into it, however it is moved about. So no plan with addresses is
faster than this either, and a bound for plans must not be above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from tierline_steps.graph import Graph
from tierline_steps.plan import ALIGNMENT, Links


@dataclass(frozen=True, slots=True)
class _State:
    held: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    host: frozenset[int] = frozenset()
    runs: tuple[int, int] | None = None  # an operator, and how long it still takes
    away: tuple[int, int] | None = None  # a value that goes to the host
    back: tuple[int, int] | None = None


def least_ns(graph: Graph, budget_bytes: int, links: Links | None) -> int | None:
    """The time of the fastest plan; None if there is none within the budget."""
    start = _State()
    best = {start: 0}
    number = count()  # states have no order
    todo = [(0, next(number), start)]
    live_out = {v for v, about in enumerate(graph.values) if about.role.is_live_out}
    search = _Search(graph, budget_bytes - graph.live_in_bytes, links)
    while todo:
        at, _, state = heappop(todo)
        if at > best[state]:
            continue
        if len(state.done) == len(graph.operators) and live_out <= state.held:
            return at
        for takes, other in search.steps(state):
            if at + takes < best.get(other, 1 << 62):
                best[other] = at + takes
                heappush(todo, (at + takes, next(number), other))
    return None


@dataclass(frozen=True)
class _Search:
    graph: Graph
    arena_bytes: int
    links: Links | None

    def steps(self, state: _State) -> Iterator[tuple[int, _State]]:
        """What may come next, and how long until then."""
        busy = self._busy(state)
        for value in state.held - busy:
            yield 0, replace(state, held=state.held - {value})
        if state.runs is None:
            yield from self._operators(state)
        if state.away is None and self.links is not None:
            for value in state.held - state.host:
                takes = self._copy_ns(value, self.links.d2h)
                yield 0, replace(state, away=(value, takes))
        if state.back is None and self.links is not None:
            for value in state.host - state.held:
                takes = self._copy_ns(value, self.links.h2d)
                if self._fits(other := replace(state, back=(value, takes))):
                    yield 0, other
        yield from self._later(state)

    def _busy(self, state: _State) -> set[int]:
        """What is read now."""
        reads = set() if state.runs is None else set(self.graph.operators[state.runs[0]].reads)
        return reads if state.away is None else reads | {state.away[0]}

    def _operators(self, state: _State) -> Iterator[tuple[int, _State]]:
        for index, about in enumerate(self.graph.operators):
            if index in state.done and not about.repeatable:
                continue
            if all(v in state.held or self.graph.writer[v] < 0 for v in about.reads):
                other = replace(state, runs=(index, about.time_ns))
                if self._fits(other):
                    yield 0, other

    def _later(self, state: _State) -> Iterator[tuple[int, _State]]:
        running = [one for one in (state.runs, state.away, state.back) if one is not None]
        if not running:
            return
        takes = min(rest for _, rest in running)
        held, done, host = set(state.held), set(state.done), set(state.host)
        runs, away, back = (
            None if one is None else (one[0], one[1] - takes)
            for one in (state.runs, state.away, state.back)
        )
        if runs is not None and runs[1] == 0:
            held.update(self.graph.operators[runs[0]].writes)
            done.add(runs[0])
            runs = None
        if away is not None and away[1] == 0:
            host.add(away[0])
            away = None
        if back is not None and back[1] == 0:
            held.add(back[0])
            back = None
        yield takes, _State(frozenset(held), frozenset(done), frozenset(host), runs, away, back)

    def _copy_ns(self, value: int, speed: float) -> int:
        assert self.links is not None
        return self.links.latency_ns + int(self.graph.values[value].size_bytes * 1e9 / speed)

    def _fits(self, state: _State) -> bool:
        there = set(state.held)
        scratch = 0
        if state.runs is not None:
            there.update(self.graph.operators[state.runs[0]].writes)
            scratch = self.graph.operators[state.runs[0]].workspace_bytes
        if state.back is not None:
            there.add(state.back[0])
        sizes = [self.graph.values[value].size_bytes for value in there] + [scratch]
        places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        unused = max(place - size for place, size in zip(places, sizes, strict=True))
        return sum(places) - unused <= self.arena_bytes
