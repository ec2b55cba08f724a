"""Orders that run within an arena, whatever order they are made from."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.steps.kit.random_graphs import random_graph, repetitive_order, training_chain

from tierline_steps.eviction import Taste, evicted
from tierline_steps.graph import Graph, Operator, Role, Value
from tierline_steps.schedule import Problem, Schedule

TASTES = st.builds(Taste, st.sampled_from((0.0, 0.2, 1.0)), st.sampled_from((0.0, 0.3, 1.0)))
ROOMY = 1 << 40


@given(st.randoms(use_true_random=False), TASTES, st.floats(0, 1.2))
def test_an_order_is_the_graph_s_program(rng: Random, taste: Taste, share: float) -> None:
    graph, base = _given(rng)
    problem = Problem(graph)
    order = evicted(problem, base, int(share * Schedule(problem, base).peak_bytes), taste)
    if order is None:
        return
    Schedule(problem, order)  # each read finds what it reads
    assert set(order) == set(range(len(graph.operators)))
    once = [one for one in order if not graph.operators[one].repeatable]
    assert once == sorted(set(once))
    backward = [one for one in base if one >= graph.backward]
    if backward and base.index(backward[0]) >= graph.backward:
        ahead = order[: min(map(order.index, backward))]
        assert set(ahead) == set(range(graph.backward))


@given(st.randoms(use_true_random=False), TASTES)
def test_with_room_for_all_nothing_runs_again(rng: Random, taste: Taste) -> None:
    """Not even what the order that it is made from runs again."""
    graph, base = _given(rng)
    assert evicted(Problem(graph), base, ROOMY, taste) == list(range(len(graph.operators)))


@given(st.integers(2, 30), TASTES)
def test_what_goes_is_made_again_within_the_arena(layers: int, taste: Taste) -> None:
    """Each layer keeps one value: half of the chain fits if the rest is made again."""
    graph = training_chain(layers)
    problem = Problem(graph)
    arena = 1024 * (layers // 2 + 6)
    order = evicted(problem, list(range(2 * layers)), arena, taste)
    assert order is not None
    assert Schedule(problem, order).peak_bytes <= arena


@given(st.integers(8, 30), TASTES)
def test_what_only_the_program_reads_stays(layers: int, taste: Taste) -> None:
    """It is made at the loss from what is there; at the end the whole forward would run for it."""
    graph = _with_result(training_chain(layers))
    order = evicted(Problem(graph), list(range(2 * layers + 1)), 1024 * (layers // 2 + 7), taste)
    assert order is not None
    assert order.count(layers) == 1


def _with_result(graph: Graph) -> Graph:
    """The forward's last value has another reader, whose result the program gets."""
    last = graph.operators[graph.backward - 1].writes[0]
    values = (*graph.values, Value("result", 1024, Role.RESULT))
    reader = Operator("result", (last,), (len(graph.values),), 1)
    operators = list(graph.operators)
    operators.insert(graph.backward, reader)
    found = Graph("chain with a result", values, tuple(operators), graph.backward + 1)
    found.check()
    return found


def _given(rng: Random) -> tuple[Graph, list[int]]:
    graph = random_graph(rng, 20) if rng.random() < 0.5 else training_chain(6, rng)
    return graph, repetitive_order(graph, rng, rng.choice((0.0, 0.1, 0.4)))
