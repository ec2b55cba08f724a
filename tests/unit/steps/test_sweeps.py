"""Ways through a row of stages: which orders they are, and what they take."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.steps.kit.random_graphs import random_graph, small_graph, training_chain

from tierline_steps.graph import Graph, Operator, Role, Value
from tierline_steps.schedule import Problem, Schedule
from tierline_steps.stages import Stages
from tierline_steps.sweeps import Sweeps

LARGE = 1 << 30


@given(st.randoms(use_true_random=False), st.integers(1, 8), st.floats(0, 1.5))
def test_a_way_is_the_graph_s_program(rng: Random, count: int, share: float) -> None:
    """In any graph that has a backward, whatever its values' sizes are."""
    graph = _with_a_backward(rng)
    problem = Problem(graph)
    peak = Schedule(problem, range(len(graph.operators))).peak_bytes
    order = Sweeps(Stages(problem, count), peak, 20).order(int(share * peak))
    if order is None:
        return
    Schedule(problem, order)  # each read finds what it reads
    assert list(dict.fromkeys(order)) == list(range(len(graph.operators)))
    assert all(not problem.once[one] for one in order if order.count(one) > 1)


@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_with_room_for_all_nothing_that_is_read_runs_again(rng: Random, count: int) -> None:
    graph = training_chain(8, rng)
    problem = Problem(graph)
    order = Sweeps(Stages(problem, count), LARGE, 20).order(LARGE)
    assert order == list(range(len(graph.operators)))


@given(st.integers(1, 9))
def test_stages_are_the_step_in_its_order(count: int) -> None:
    graph = training_chain(12)
    stages = Stages(Problem(graph), count)
    assert [one for part in stages.forwards for one in part] == list(range(graph.backward))
    backward = [one for part in reversed(stages.backwards) for one in part]
    assert backward == list(range(graph.backward, len(graph.operators)))
    assert abs(stages.count - count) <= count // 2 + 1


@pytest.mark.parametrize("memory", [9, 11, 13, 16])
def test_more_memory_is_never_slower_and_takes_what_was_asked_for(memory: int) -> None:
    """Of a chain of equal layers, 16 of 1 KiB, whose sizes are whole slots."""
    graph = training_chain(16)
    problem = Problem(graph)
    sweeps = Sweeps(Stages(problem, 16), 24 * 1024, 24)
    less, more = (sweeps.order(kib * 1024) for kib in (memory, memory + 3))
    assert less is not None
    assert more is not None
    assert Schedule(problem, more).time_ns <= Schedule(problem, less).time_ns
    assert Schedule(problem, less).peak_bytes <= (memory + 1) * 1024


def test_cheap_borders_run_again_and_dear_values_stay() -> None:
    """Each layer has a small value that is dear, and a large one that is cheap given that.

    To run the forward of many layers again is half as long if the small values were kept, which
    no plan does that keeps all or nothing of a layer.
    """
    graph = _dear_and_cheap(10)
    problem = Problem(graph)
    room = 10 * 1024 + 6 * 8192
    order = Sweeps(Stages(problem, 10), room, 58).order(room)
    assert order is not None
    schedule = Schedule(problem, order)
    assert schedule.peak_bytes <= room * 1.05
    again = {one for one in order if order.count(one) > 1}
    assert not [one for one in again if graph.operators[one].name.startswith("dear")]
    assert len([one for one in again if graph.operators[one].name.startswith("cheap")]) >= 4


def _dear_and_cheap(layers: int) -> Graph:
    values = [Value("x", 512, Role.INPUT)]
    operators: list[Operator] = []

    def add(name: str, reads: tuple[int, ...], size: int, time_ns: int, role: Role) -> int:
        values.append(Value(name, size, role))
        operators.append(Operator(name, tuple(sorted({*reads})), (len(values) - 1,), time_ns))
        return len(values) - 1

    last, made = 0, []
    for layer in range(layers):
        dear = add(f"dear{layer}", (last,), 1024, 1000, Role.ACTIVATION)
        cheap = add(f"cheap{layer}", (last, dear), 8192, 50, Role.ACTIVATION)
        made.append((last, dear, cheap))
        last = cheap
    for layer in reversed(range(layers)):
        role = Role.ACTIVATION if layer else Role.GRADIENT
        last = add(f"back{layer}", (*made[layer], last), 1024, 2000, role)
    graph = Graph("dear and cheap", tuple(values), tuple(operators), 2 * layers)
    graph.check()
    return graph


def _with_a_backward(rng: Random) -> Graph:
    kind = rng.randrange(3)
    if kind == 0:
        return training_chain(6, rng)
    graph = random_graph(rng, 20) if kind == 1 else small_graph(rng, 10)
    backward = max(1, len(graph.operators) // 2)
    return Graph(graph.name, graph.values, graph.operators, backward)
