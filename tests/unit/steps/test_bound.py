"""What no plan can beat: held against plans, and against the optimum by trying everything."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.unit.steps.kit.exact import least_ns
from tests.unit.steps.kit.one_plan import DROP, GRAPH, PLAN
from tests.unit.steps.kit.random_graphs import random_graph, small_graph, training_chain
from tests.unit.steps.kit.random_plans import random_plan

from tierline_steps.bound import Bound, bound, floor
from tierline_steps.graph import Graph, Role
from tierline_steps.plan import Infeasible, Links
from tierline_steps.timing import finish_ns

EVEN = Links(d2h=1e9, h2d=1e9, together=2e9, latency_ns=0)
"""A byte each nanosecond, both ways at once."""


def test_the_floor_names_the_operator_that_needs_most() -> None:
    least = floor(GRAPH)
    assert (least.least_bytes, least.operator) == (1536 + 1024 + 1024 + 512 + 512, DROP)
    assert "drop" in least.reason


def test_the_floor_rounds_all_but_one_size_to_the_alignment() -> None:
    values = [*GRAPH.values]
    values[2] = replace(values[2], size_bytes=1025)
    values[7] = replace(values[7], size_bytes=1030)
    least = floor(replace(GRAPH, values=tuple(values)))
    assert least.least_bytes == 1536 + 1536 + 512 + 1536 + 512 - (1536 - 1025)


def test_the_floor_of_what_stays_has_no_operator() -> None:
    values = [
        value if value.role.is_live_in else replace(value, role=Role.GRADIENT)
        for value in GRAPH.values
    ]
    least = floor(replace(GRAPH, values=tuple(values)))
    assert (least.least_bytes, least.operator) == (1536 + 3 * 1024 + 2 * 512 + 1, None)


def test_a_graph_without_operators_needs_what_is_live_in() -> None:
    empty = Graph("empty", GRAPH.values[:2], (), 0)
    assert floor(empty).least_bytes == empty.live_in_bytes
    assert bound(empty, 1 << 20, None) == Bound(0, None)


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_below_the_floor_or_faster_than_the_bound(seed: int) -> None:
    rng = _random(seed)
    graph = random_graph(rng)
    plan = random_plan(graph, rng)
    d2h, h2d, together = (rng.choice((1e6, 1e9, 1e12)) for _ in range(3))
    links = Links(d2h, h2d, together, rng.choice((0, 50)))
    assert floor(graph).least_bytes <= plan.budget_bytes
    found = bound(graph, plan.budget_bytes, links if plan.queues[1] else None)
    assert isinstance(found, Bound)
    assert graph.time_ns <= found.time_ns <= finish_ns(graph, plan, links)


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_of_small_graphs_is_not_below_the_bound(seed: int) -> None:
    rng = _random(seed)
    graph = small_graph(rng, 6) if seed % 2 else training_chain(3, rng)
    for budget in _budgets(graph):
        _compare(graph, budget, None)


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_with_copies_is_not_below_the_bound(seed: int) -> None:
    rng = _random(seed)
    sizes = (512, 1024)
    graph = small_graph(rng, 3, sizes) if seed % 2 else training_chain(2, rng, sizes)
    for budget in _budgets(graph):
        _compare(graph, budget, EVEN)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_what_only_copies_can_save_is_not_below_the_bound(seed: int) -> None:
    """By a link that takes longer than the operators, which run once."""
    graph = _once(training_chain(4, _random(seed), (512, 1024)))
    slow = Links(d2h=0.125e9, h2d=0.125e9, together=0.25e9, latency_ns=0)
    found = bound(graph, floor(graph).least_bytes, slow)
    optimum = least_ns(graph, floor(graph).least_bytes, slow)
    assert isinstance(found, Bound)
    assert optimum is not None
    assert graph.time_ns <= found.time_ns <= optimum


def test_the_bound_says_more_than_that_each_operator_runs() -> None:
    gained = []
    for seed in range(20):
        graph = training_chain(3, _random(seed))
        found = [bound(graph, budget, None) for budget in _budgets(graph)]
        gained.append(any(isinstance(one, Bound) and one.cut is not None for one in found))
    assert sum(gained) > 10


def test_the_bound_grows_as_the_budget_shrinks() -> None:
    graph = training_chain(30)
    budgets = range(floor(graph).least_bytes, graph.peak_bytes() + 1024, 1024)
    found = [bound(graph, budget, None) for budget in budgets]
    times = [one.time_ns for one in found if isinstance(one, Bound)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.3 * graph.time_ns
    assert times[-1] == graph.time_ns


def test_what_cannot_be_made_again_must_stay() -> None:
    graph = _once(training_chain(6))
    found = bound(graph, graph.peak_bytes() - 1, None)
    assert isinstance(found, Infeasible)
    assert found.least_bytes == graph.peak_bytes()
    assert isinstance(bound(graph, graph.peak_bytes(), None), Bound)
    assert isinstance(bound(graph, graph.peak_bytes() - 1, EVEN), Bound)


def test_nothing_depends_on_what_the_solver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = _random(1)

    def anything(program: Any, _highs: Any, _costs: object) -> list[int]:
        scale = 10 ** rng.randint(0, 15)
        return [rng.choice((0, rng.randint(0, scale))) for _ in program.rows]

    monkeypatch.setattr("tierline_steps.bound._Program._multipliers", anything)
    for seed in range(20):
        graph = training_chain(3, _random(seed))
        for budget in _budgets(graph):
            _compare(graph, budget, None)


def test_without_the_solver_it_is_what_the_operators_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    graph = training_chain(6)
    assert bound(graph, floor(graph).least_bytes, None) == Bound(graph.time_ns, None)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    bound(GRAPH, PLAN.budget_bytes, None)
    assert capfd.readouterr() == ("", "")


def _budgets(graph: Graph) -> list[int]:
    least = floor(graph).least_bytes
    return sorted({least - 1, least, least + 512, (least + graph.peak_bytes()) // 2})


def _compare(graph: Graph, budget: int, links: Links | None) -> None:
    found = bound(graph, budget, links)
    if isinstance(found, Infeasible):
        assert least_ns(graph, found.least_bytes - 1, links) is None
    else:
        optimum = least_ns(graph, budget, links)
        assert optimum is None or graph.time_ns <= found.time_ns <= optimum


def _once(graph: Graph) -> Graph:
    """The graph with operators that run once each."""
    once = tuple(replace(operator, repeatable=False) for operator in graph.operators)
    return replace(graph, operators=once)


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - any will do
