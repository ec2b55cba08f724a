"""What is live in an order with repetitions, and what may be left out of it."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.steps.kit.random_graphs import random_graph, repetitive_order, training_chain

from tierline_steps.graph import Graph
from tierline_steps.schedule import Problem, Schedule


@pytest.mark.parametrize("seed", range(60))
def test_live_bytes_are_those_of_all_instances_and_the_workspace(seed: int) -> None:
    graph, order = _repetitive(seed)
    schedule = Schedule(Problem(graph), order)
    lifetimes = schedule.lifetimes()
    for step, live in enumerate(schedule.live):
        there = sum(
            schedule.problem.sizes[one.value] for one in lifetimes if one.first <= step <= one.last
        )
        assert live == there + schedule.problem.workspaces[schedule.order[step]]


@pytest.mark.parametrize("seed", range(60))
def test_each_read_finds_the_last_instance_before_it(seed: int) -> None:
    graph, order = _repetitive(seed)
    schedule = Schedule(Problem(graph), order)
    lives = {(one.value, one.first): one.last for one in schedule.lifetimes()}
    made: dict[int, int] = {}
    for step, operator in enumerate(schedule.order):
        for value in schedule.problem.reads[operator]:
            assert lives[value, made[value]] >= step
        made.update(dict.fromkeys(schedule.problem.writes[operator], step))
    for value, about in enumerate(graph.values):
        if about.role.is_live_out:
            assert lives[value, made[value]] == len(schedule.order) - 1


@pytest.mark.parametrize("seed", range(60))
def test_what_is_needless_is_left_out_and_no_more(seed: int) -> None:
    graph, order = _repetitive(seed)
    problem = Problem(graph)
    given = Schedule(problem, order)
    for arena in (given.peak_bytes, 2 * given.peak_bytes):
        left = Schedule(problem, order).without_needless_runs(arena)
        assert left.peak_bytes <= arena
        assert left.time_ns <= given.time_ns
        assert set(left.order) == set(range(len(graph.operators)))
        assert Schedule(problem, left.order).live == left.live


def test_with_room_for_all_nothing_runs_again() -> None:
    graph, order = _repetitive(1)
    left = Schedule(Problem(graph), order).without_needless_runs(1 << 40)
    assert left.order == list(range(len(graph.operators)))


def test_a_run_whose_results_nothing_reads_is_left_out() -> None:
    graph = training_chain(3)
    again = [0, 1, 2, 0, 3, 4, 0, 1, 5]  # forward0's result is read last by backward1, 4
    assert Schedule(Problem(graph), again).order == [0, 1, 2, 0, 3, 4, 5]


def test_an_order_that_reads_what_is_not_made_is_refused() -> None:
    with pytest.raises(ValueError, match="forward1 reads what is not made yet"):
        Schedule(Problem(training_chain(3)), [1, 0, 2, 3, 4, 5])


def _repetitive(seed: int) -> tuple[Graph, list[int]]:
    """A graph, and its order with some operators once more after their first run."""
    rng = _random(seed)
    graph = random_graph(rng, 20) if seed % 2 else training_chain(6, rng)
    return graph, repetitive_order(graph, rng)


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same in every run
