"""Plans under a budget, against the optimum of small graphs and against the bound."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.steps.kit.exact import least_ns
from tests.unit.steps.kit.random_graphs import random_graph, small_graph, training_chain

from tierline_steps.bound import Bound, bound, floor
from tierline_steps.graph import Graph
from tierline_steps.plan import Infeasible, NotFound, Plan
from tierline_steps.planner import plan
from tierline_steps.timing import finish_ns
from tierline_steps.verify import verify


def steps(count: int) -> Callable[[], bool]:
    """So many steps of search."""
    left = iter(range(count))
    return lambda: next(left, None) is not None


@pytest.mark.parametrize("seed", range(60))
def test_plans_are_right_and_within_the_budget(seed: int) -> None:
    rng = _random(seed)
    graph = random_graph(rng, 24)
    least = floor(graph).least_bytes
    for share in (0.0, 0.3, 1.0, 1.5):
        budget = round(least + share * max(0, graph.peak_bytes() - least))
        found = plan(graph, budget, seed=seed, go_on=steps(10))
        if isinstance(found, Plan):
            verify(graph, found)
            assert found.arena_bytes + graph.live_in_bytes <= budget == found.budget_bytes
        assert not isinstance(found, Infeasible) or isinstance(
            bound(graph, budget, None), Infeasible
        )


@pytest.mark.parametrize("seed", range(20))
def test_with_room_for_all_the_step_takes_no_longer(seed: int) -> None:
    graph = training_chain(8, _random(seed))
    room = graph.live_in_bytes + 2 * sum(512 + value.size_bytes for value in graph.values)
    found = plan(graph, room, seed=0, go_on=steps(0))
    assert isinstance(found, Plan)
    assert finish_ns(graph, found, None) == graph.time_ns


def test_below_the_floor_is_infeasible_and_names_the_operator() -> None:
    graph = training_chain(4)
    least = floor(graph)
    assert plan(graph, least.least_bytes - 1, seed=0, go_on=steps(0)) == least


def test_what_is_not_found_is_not_called_infeasible() -> None:
    """The floor and the bound admit it, and the chain of large values does not fit."""
    found = {}
    for seed in range(40):
        graph = small_graph(_random(seed), 7)
        budget = floor(graph).least_bytes
        found[seed] = plan(graph, budget, seed=0, go_on=steps(20)), graph, budget
    missing = [one for one in found.values() if isinstance(one[0], NotFound)]
    assert missing
    for answer, graph, budget in missing:
        assert isinstance(answer, NotFound)
        assert answer.least_bytes > budget
        least = bound(graph, budget, None)
        assert isinstance(least, Bound)
        assert answer.time_bound_ns == least.time_ns


def test_small_graphs_are_planned_nearly_as_well_as_by_trying_everything() -> None:
    """None is better than the optimum, which knows no addresses; most reach it."""
    feasible = found = optimal = 0
    for seed in range(50):
        rng = _random(seed)
        graph = small_graph(rng, 6) if seed % 2 else training_chain(3, rng)
        budget = (floor(graph).least_bytes + graph.peak_bytes()) // 2
        best = least_ns(graph, budget, None)
        answer = plan(graph, budget, seed=0, go_on=steps(30))
        feasible += best is not None
        if isinstance(answer, Plan):
            found += 1
            assert best is not None
            assert finish_ns(graph, answer, None) >= best
            optimal += finish_ns(graph, answer, None) == best
    assert found >= 0.8 * feasible
    assert optimal >= 0.8 * found


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    graph = training_chain(12, _random(3))
    budget = (floor(graph).least_bytes + graph.peak_bytes()) // 2
    first, second = (plan(graph, budget, seed=5, go_on=steps(30)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("layers", [20, 40])
def test_a_chain_in_half_its_memory_runs_little_again(layers: int) -> None:
    """A third longer is what running each forward again would take."""
    graph = training_chain(layers)
    found = plan(graph, graph.peak_bytes() * 6 // 10, seed=0, go_on=steps(30))
    assert isinstance(found, Plan)
    least = bound(graph, found.budget_bytes, None)
    assert isinstance(least, Bound)
    assert _extra(graph, finish_ns(graph, found, None)) < 0.35
    assert finish_ns(graph, found, None) <= 1.15 * least.time_ns


@settings(max_examples=8)
@given(st.integers(4, 12), st.booleans())
def test_more_memory_is_no_slower(layers: int, equal: bool) -> None:
    """Within one part of a hundred of the step."""
    graph = training_chain(layers, None if equal else _random(layers))
    least, peak = floor(graph).least_bytes, graph.peak_bytes()
    times = []
    for number in range(2, 8, 2):
        budget = least + (peak - least) * number // 8
        found = plan(graph, budget, seed=0, go_on=steps(20))
        times.append(finish_ns(graph, found, None) if isinstance(found, Plan) else 1 << 60)
    for less, more in pairwise(times):
        assert more <= less + graph.time_ns // 100


def _extra(graph: Graph, time_ns: int) -> float:
    return time_ns / graph.time_ns - 1


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same in every run
