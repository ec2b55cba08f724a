"""Which way of scheduling a set gets: the first that admits it, of those the device supports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.mixedsets import mixed_device, mixed_set
from tests.unit.planning.shapes import device, task

from tierline_agent.registration import Preemption
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.from_api import preemption_of
from tierline_operator.planning.planner import PREFERENCE, plan, prepare
from tierline_operator.planning.request import DeviceCapacity, Margins

EVERY_WAY = frozenset(Scheduling)
URGENT_AND_LONG = [
    task("urgent", 20, 10, 4, megabytes=4),
    task("long", 200, 200, 60, megabytes=4, layers=4),
]
"""The long one's job of 60 ms blocks the urgent one, a layer of 15 ms too; one of 5 ms does not."""


def admitted(answer: Admitted | Infeasible) -> Admitted:
    assert isinstance(answer, Admitted), answer
    return answer


def test_a_set_that_needs_no_preemption_gets_none() -> None:
    answer = admitted(plan([task("one", 100, 90, 4)], supporting(EVERY_WAY, device(20))))
    assert answer.scheduling is Scheduling.NON_PREEMPTIVE
    assert not any(granted.preemptible for granted in answer.plans)


def test_preemption_is_planned_only_where_agents_preempt() -> None:
    tasks = [task("urgent", 20, 10, 4), task("long", 200, 200, 60, layers=12)]
    today = plan(tasks, device(40))
    assert isinstance(today, Infeasible)
    assert today.blocker == "long"
    answer = admitted(plan(tasks, supporting(EVERY_WAY, device(40))))
    assert answer.scheduling is Scheduling.RING_KEEPING
    only = frozenset({Scheduling.NON_PREEMPTIVE, Scheduling.LAYER_PREEMPTIVE})
    answer = admitted(plan(tasks, supporting(only, device(40))))
    assert answer.scheduling is Scheduling.LAYER_PREEMPTIVE
    assert [granted.preemptible for granted in answer.plans] == [False, True]


@pytest.mark.parametrize("way", [Scheduling.RING_KEEPING, Scheduling.LAYER_PREEMPTIVE])
def test_an_agent_is_told_what_the_proof_assumes_of_jobs_that_yield(way: Scheduling) -> None:
    tasks = [task("urgent", 20, 10, 4), task("long", 200, 200, 60, layers=20, workspace_bytes=7)]
    ways = frozenset({Scheduling.NON_PREEMPTIVE, way})
    slowed = replace(device(40), margins=Margins(compute=1.1), dispatch_s=0.0005, gate_s=0.00002)
    answer = admitted(plan(tasks, supporting(ways, slowed)))
    urgent, long = answer.plans
    assert long.layer_s == pytest.approx(0.003 * 1.1 + 0.00002 + 0.0005)
    assert preemption_of(urgent, answer.scheduling) is None
    preemption = Preemption.model_validate(preemption_of(long, answer.scheduling))
    told = preemption.terms
    assert told.scheduling.name == way.name
    assert told.layer_ns == pytest.approx(long.layer_s * 1e9, abs=1)
    assert preemption.penalty_ns == pytest.approx(long.penalty_s * 1e9, abs=1)
    assert told.parked_bytes == long.parked_bytes == 10**6


def test_a_refusal_names_what_is_missing_least() -> None:
    where = supporting(EVERY_WAY, device(10))
    refused = plan(URGENT_AND_LONG, where)
    assert isinstance(refused, Infeasible)
    each = [plan(URGENT_AND_LONG, where, scheduling=way) for way in PREFERENCE]
    shortfalls = [one.shortfall_s for one in each if isinstance(one, Infeasible)]
    assert len(shortfalls) == len(PREFERENCE)
    assert refused.shortfall_s == min(s for s in shortfalls if s is not None)


def test_a_device_that_does_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="support"):
        supporting(frozenset(), device(10))


@pytest.mark.slow
def test_the_choice_is_the_first_way_that_admits() -> None:
    chosen = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tasks = mixed_set(rng)
        where = mixed_device(rng, tasks)
        answer = plan(tasks, supporting(EVERY_WAY, where))
        ways = [way for way in PREFERENCE if plan(tasks, where, scheduling=way).ok]
        assert answer.ok == bool(ways)
        if isinstance(answer, Admitted):
            assert answer == plan(tasks, where, scheduling=ways[0])
            chosen.add(ways[0])
        prepared = prepare(tasks, where)
        if not isinstance(prepared, Infeasible):
            for way in PREFERENCE:
                holds = any(one.holds(where.fast_bytes, way) for one in prepared)
                assert holds == (way in ways)
    assert chosen >= {Scheduling.NON_PREEMPTIVE, Scheduling.RING_KEEPING}


def supporting(ways: frozenset[Scheduling], where: DeviceCapacity) -> DeviceCapacity:
    return replace(where, supports=ways)
