"""When plans finish."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.unit.steps.kit.one_plan import COMPUTE, D2H, GRAPH, H2D, PLAN, step
from tests.unit.steps.kit.random_graphs import random_graph
from tests.unit.steps.kit.random_plans import random_plan

from tierline_steps.graph import Graph
from tierline_steps.plan import Links, Plan, Queue, Step
from tierline_steps.timing import finish_ns

LINKS = Links(d2h=1e9, h2d=2e9, together=3e9, latency_ns=7)


def _longest_path_ns(graph: Graph, plan: Plan, times: list[int]) -> float:
    """By its definition, from the last steps back."""
    known: dict[tuple[Queue, int], float] = {}

    def end(queue: Queue, index: int) -> float:
        if index < 0:
            return 0
        if (queue, index) not in known:
            one = plan.queues[queue][index]
            begin = max(end(q, i) for q, i in [(queue, index - 1), *one.waits])
            known[queue, index] = begin + takes(one)
        return known[queue, index]

    def takes(one: Step) -> float:
        if one.operator is not None:
            return times[one.operator]
        (instance,) = one.reads + one.writes
        speed = LINKS.d2h if one.reads else LINKS.h2d
        size = graph.values[plan.instances[instance].value].size_bytes
        return LINKS.latency_ns + size / speed * 1e9

    return max(end(queue, len(plan.queues[queue]) - 1) for queue in Queue)


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_finishes_after_its_longest_path(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - any will do
    graph = random_graph(rng)
    plan = random_plan(graph, rng)
    measured = [rng.randint(0, 5000) for _ in graph.operators]
    planned = [operator.time_ns for operator in graph.operators]
    assert finish_ns(graph, plan, LINKS) == pytest.approx(
        _longest_path_ns(graph, plan, planned), abs=1
    )
    assert finish_ns(graph, plan, LINKS, measured) == pytest.approx(
        _longest_path_ns(graph, plan, measured), abs=1
    )


def _both_ways(latency_ns: int, d2h: float, h2d: float, together: float) -> int:
    """A copy of 1024 bytes each way from the start, nothing else."""
    away, back = (replace(PLAN.queues[queue][0], waits=()) for queue in (D2H, H2D))
    plan = replace(PLAN, queues=((), (away,), (back,)))
    return finish_ns(GRAPH, plan, Links(d2h, h2d, together, latency_ns))


def test_two_copies_at_once_share_the_link() -> None:
    assert _both_ways(0, 1e9, 1e9, 2e9) == 1024
    assert _both_ways(0, 1e9, 1e9, 1e9) == 2048
    assert _both_ways(100, 1e9, 1e9, 1e9) == 2148


def test_the_slower_copy_is_alone_once_the_other_is_over() -> None:
    """Together at 2/3 of 1 and 2 bytes a nanosecond: 768 ns, then 512 bytes are left, alone."""
    assert _both_ways(0, 1e9, 2e9, 2e9) == 768 + 512


def test_a_plan_without_copies_needs_no_links() -> None:
    alone = replace(PLAN, queues=(PLAN.queues[COMPUTE][:3], (), ()))
    assert finish_ns(GRAPH, alone, None) == 60


@pytest.mark.parametrize(
    ("plan", "times", "sentence"),
    [
        (PLAN, None, "the plan copies, and there are no links"),
        (PLAN, [1, 2], "2 times for 5 operators"),
        (step(COMPUTE, 0, waits=((H2D, 0),)), None, "wait in a circle"),
    ],
)
def test_what_has_no_finish_is_refused(plan: Plan, times: list[int] | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        finish_ns(GRAPH, plan, None, times)
