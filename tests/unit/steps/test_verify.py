"""The verifier: what it accepts is right under every timing, and each of its checks counts."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from types import ModuleType

import pytest
from tests.unit.steps.kit.faults import KINDS, judge
from tests.unit.steps.kit.one_plan import FAULTS, GRAPH, PLAN, Fault
from tests.unit.steps.kit.random_graphs import random_graph
from tests.unit.steps.kit.random_plans import random_plan
from tests.unit.steps.kit.truth import shown_wrong
from tests.unit.steps.kit.weakened import without_a_check, without_part_of_a_check

from tierline_steps import verify as verifier
from tierline_steps.plan import Instance, Plan, Queue, Step
from tierline_steps.verify import PlanRejectedError, verify

RANDOM_PLANS = 150
HARMLESS = {
    "wait for its own queue",
    "wait for one queue twice",
    "copy of a live-in value",
    "instance written twice",
    "copied to the host twice",
}
"""What plans may not have, although it does nothing wrong as such."""


def test_the_small_plan_is_accepted() -> None:
    verify(GRAPH, PLAN)
    assert shown_wrong(GRAPH, PLAN, _random(1), 20) is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_rejected_where_it_is(name: str) -> None:
    assert _verdict(verifier, FAULTS[name]) == "as it should be"


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - HARMLESS))
def test_random_runs_show_the_fault(name: str) -> None:
    assert shown_wrong(FAULTS[name].graph, FAULTS[name].plan, _random(1), 100)


def test_without_any_of_its_checks_a_fault_is_accepted() -> None:
    for weaker in without_a_check():
        verdicts = {_verdict(weaker, fault) for fault in FAULTS.values()}
        assert verdicts & {"accepted", "crashed"}, weaker.__doc__


def test_without_part_of_a_check_a_test_fails() -> None:
    for weaker in without_part_of_a_check():
        verdicts = {_verdict(weaker, fault) for fault in FAULTS.values()}
        assert verdicts != {"as it should be"}, weaker.__doc__


@pytest.mark.parametrize("seed", range(RANDOM_PLANS))
def test_a_plan_that_came_about_in_order_is_accepted(seed: int) -> None:
    rng = _random(seed)
    graph = random_graph(rng)
    plan = random_plan(graph, rng)
    verify(graph, plan)
    assert shown_wrong(graph, plan, rng, 2) is None


def test_random_plans_do_all_that_plans_can() -> None:
    """Or the test above says little."""
    seen = dict.fromkeys(("again", "copied back", "place used again", "random operator"), 0)
    for seed in range(RANDOM_PLANS):
        rng = _random(seed)
        graph = random_graph(rng)
        plan = random_plan(graph, rng)
        places = [one.offset for one in plan.instances if one.offset is not None]
        seen["again"] += len(plan.queues[Queue.COMPUTE]) > len(graph.operators)
        seen["copied back"] += len(plan.queues[Queue.H2D]) > 0
        seen["place used again"] += len(set(places)) < len(places)
        seen["random operator"] += not all(one.repeatable for one in graph.operators)
    assert min(seen.values()) > RANDOM_PLANS / 10, seen


def test_no_fault_is_accepted_that_random_runs_show() -> None:
    """`python -m tests.unit.steps.kit.faults` does this a hundred thousand times."""
    found = judge(seed=0, runs=2000, timings=5)
    kinds = {kind for kind, _, _ in found}
    assert kinds == set(KINDS)
    assert not {key: n for key, n in found.items() if key[1:] == (True, True)}


@pytest.mark.parametrize("number", [-(1 << 70), -1, 0, 1, 7, 511, 512, 1 << 70])
def test_any_number_in_any_field_is_judged(number: int) -> None:
    """Accepted or rejected, and nothing else."""
    judged = 0
    for plan in _edited(number):
        judged += _verdict(verifier, Fault(plan, (None, None), "")) != "crashed"
    assert judged == len([*_edited(number)]) > 50


def test_an_empty_plan_is_no_plan() -> None:
    empty = Plan(GRAPH.digest, 1 << 20, 0, 0, (), ((), (), ()))
    with pytest.raises(PlanRejectedError, match="mul never runs"):
        verify(GRAPH, empty)


def _verdict(judge_: ModuleType, fault: Fault) -> str:
    try:
        judge_.verify(fault.graph, fault.plan)
    except judge_.PlanRejectedError as found:
        is_there = (found.queue, found.index) == fault.at and fault.reason in found.reason
        return "as it should be" if is_there else "another reason"
    except (LookupError, TypeError, ValueError, AttributeError):
        return "crashed"
    return "accepted"


def _edited(number: int) -> list[Plan]:
    """The small plan with each of its numbers replaced."""
    plans = [
        replace(PLAN, budget_bytes=number),
        replace(PLAN, arena_bytes=number),
        replace(PLAN, host_bytes=number),
    ]
    for index in range(len(PLAN.instances)):
        for field in fields(Instance):
            instances = list(PLAN.instances)
            instances[index] = replace(instances[index], **{field.name: number})
            plans.append(replace(PLAN, instances=tuple(instances)))
    for queue in Queue:
        for index, step in enumerate(PLAN.queues[queue]):
            plans += [_with_step(queue, index, other) for other in _edited_steps(step, number)]
    return plans


def _edited_steps(step: Step, number: int) -> list[Step]:
    steps = [replace(step, operator=number), replace(step, workspace=number)]
    for at in range(len(step.reads)):
        reads = (*step.reads[:at], number, *step.reads[at + 1 :])
        steps.append(replace(step, reads=reads))
    for at in range(len(step.writes)):
        writes = (*step.writes[:at], number, *step.writes[at + 1 :])
        steps.append(replace(step, writes=writes))
    steps += [replace(step, waits=((queue, number),)) for queue in Queue]
    return steps


def _with_step(queue: Queue, index: int, step: Step) -> Plan:
    queues = [list(steps) for steps in PLAN.queues]
    queues[queue][index] = step
    compute, d2h, h2d = (tuple(steps) for steps in queues)
    return replace(PLAN, queues=(compute, d2h, h2d))


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - any will do
