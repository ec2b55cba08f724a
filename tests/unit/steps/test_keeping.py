"""What is kept at a price, against trying every set."""

from __future__ import annotations

from itertools import combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.steps.kit.random_graphs import small_graph

from tierline_steps.keeping import kept
from tierline_steps.schedule import Problem


@given(
    st.randoms(use_true_random=False), st.sampled_from((0.0, 0.05, 0.2, 1.0, 5.0)), st.booleans()
)
def test_no_set_is_cheaper(rng: Random, price: float, some_run_again: bool) -> None:
    graph = small_graph(rng, 5)
    problem = Problem(graph)
    values = [value for value, writer in enumerate(graph.writer) if writer >= 0]
    wanted = {value for value in values if rng.random() < 0.6}
    there = {value for value in values if rng.random() < 0.2}
    again = {value for value in wanted - there if rng.random() < 0.3} if some_run_again else set()
    operators = range(len(graph.operators))
    found = kept(problem, operators, wanted, there, again, price)
    free = there | {value for value in values if problem.once[graph.writer[value]]}
    assert not found & (free | again)
    options = [value for value in values if value not in free | again]
    least = min(
        _cost(problem, wanted, free, set(some), price)
        for count in range(len(options) + 1)
        for some in combinations(options, count)
    )
    assert abs(_cost(problem, wanted, free, set(found), price) - least) <= 1e-6 * (1 + least)


def _cost(
    problem: Problem, wanted: set[int], free: set[int], keep: set[int], price: float
) -> float:
    """Of keeping these, and of all that must run again for what is wanted."""
    todo, runs = list(wanted), set()
    while todo:
        value = todo.pop()
        operator = problem.writer[value]
        if value not in free | keep and operator not in runs:
            runs.add(operator)
            todo += problem.reads[operator]
    cost = sum(problem.times[operator] for operator in runs)
    return cost + price * sum(problem.sizes[value] for value in keep)
