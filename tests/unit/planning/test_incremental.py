"""One task more: admitted whenever planning all again admits it, and what is admitted is proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.simulation.compiled.runs import Attack, play
from tests.simulation.compiled.tables import tables_of
from tests.simulation.crowds import crowd, crowded, softened
from tests.simulation.mixedsets import mixed_device, mixed_set
from tests.unit.planning.shapes import device, task

from tierline_operator.admission.demand import DemandTest, SporadicTask, instant_ns, np_edf
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.held import held_by
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.simulation.from_plans import machine_of, models_of


def proven(answer: ProvenSet | Infeasible) -> ProvenSet:
    assert isinstance(answer, ProvenSet), answer
    return answer


def test_others_keep_their_plans() -> None:
    empty = proven(settle([], device(60)))
    first = proven(admit(empty, task("first", 100, 90, 10, megabytes=20)))
    second = first.with_task(task("second", 200, 180, 20, megabytes=30))
    assert second is not None
    assert second.plans[0] == first.plans[0]
    assert [one.name for one in second.plans] == ["first", "second"]
    assert second.fast_bytes_used <= 60e6
    exact = second.responses_s()
    assert all(
        r is not None and r <= p.response_s
        for r, p in zip(exact, second.plans, strict=True)
        if p.response_s
    )


def test_a_stream_takes_no_more_memory_than_its_deadline_needs() -> None:
    empty = proven(settle([], device(60)))
    loose = proven(admit(empty, task("loose", 2000, 2000, 10, megabytes=40)))
    tight = proven(admit(empty, task("tight", 2000, 100, 10, megabytes=40)))
    assert 0 < loose.fast_bytes_used < tight.fast_bytes_used < 50e6


def test_a_refusal_is_the_planners() -> None:
    full = proven(settle([task("one", 100, 90, 50)], device(30)))
    more = task("two", 100, 90, 45)
    refused = admit(full, more)
    assert isinstance(refused, Infeasible)
    assert refused == plan([task("one", 100, 90, 50), more], device(30))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the attacks' engine may have to be compiled first
def test_growing_admits_what_planning_again_admits_and_it_holds() -> None:
    quick = grown = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        tasks = mixed_set(rng, most_arenas=1 + seed % 3 // 2)
        ways = frozenset(Scheduling) if seed % 2 else frozenset({Scheduling.NON_PREEMPTIVE})
        where = replace(mixed_device(rng, tasks), supports=ways)
        now = proven(settle([], where))
        for demand in tasks:
            step = now.with_task(demand)
            after = admit(now, demand)
            if plan([*now.demands, demand], where).ok:
                assert isinstance(after, ProvenSet)
            if not isinstance(after, ProvenSet):
                continue
            quick, grown, now = quick + (step is not None), grown + 1, after
            check(now, where)
        attacked(now, where, rng)
    assert grown > 60
    assert quick > grown / 4


def check(now: ProvenSet, where: DeviceCapacity) -> None:
    assert now.fast_bytes_used <= where.fast_bytes
    rings = dict.fromkeys((demand.domain for demand in now.demands), 0)
    for demand, granted in zip(now.demands, now.plans, strict=True):
        rings[demand.domain] = max(rings[demand.domain], granted.ring_extents)
    held = sum(len(granted.resident_extents) for granted in now.plans) + sum(rings.values())
    size = now.demands[0].layout.extent_bytes
    parked = sum(granted.parked_bytes for granted in now.plans)
    workspace = max(demand.workspace_bytes for demand in now.demands)
    assert held * size + parked + workspace <= now.fast_bytes_used
    rows = zip(now.demands, now.plans, now.lean.costs, now.lean.sections, strict=True)
    sporadic = [
        SporadicTask(
            demand.name,
            demand.period_s,
            None if granted.response_s is None else demand.deadline_s,
            cost / 1e9,
            section / 1e9,
        )
        for demand, granted, cost, section in rows
    ]
    assert np_edf(sporadic).ok


def attacked(now: ProvenSet, where: DeviceCapacity, rng: np.random.Generator) -> None:
    if not now.demands:
        return
    models = models_of(now.demands, now.plans, where)
    machine = machine_of(now.plans, where, now.scheduling)
    runs = [Attack(released(now.demands, rng, index), 2.0, index) for index in range(40)]
    played = play(tables_of(models, machine), runs)
    assert not played.seen["failed"].any()
    assert not played.seen["misses"].any()


def released(
    demands: tuple[TaskDemand, ...], rng: np.random.Generator, blocker: int
) -> tuple[float, ...]:
    first = [1.0 + (demand.period_s * rng.random() if blocker > 8 else 0.0) for demand in demands]
    first[blocker % len(first)] -= 1e-9
    return tuple(first)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(2, 6),
    st.sampled_from([0.5, 0.9, 1.0]),
    st.sampled_from([0.7, 1.0]),
    st.sampled_from([0.7, 1.5]),
    st.sampled_from([frozenset({way}) for way in Scheduling]),
)
def test_one_more_among_soft_tasks_is_what_the_full_analysis_admits(
    seed: int,
    count: int,
    load: float,
    soft: float,
    ratio: float,
    ways: frozenset[Scheduling],
) -> None:
    tasks = softened(crowd("small", seed, count, load), soft, seed)
    tasks = [replace(one, calls=(1 + (seed + index) % 4 // 3,)) for index, one in enumerate(tasks)]
    where = crowded(tasks, ratio, *ways)
    now = settle(tasks, where)
    if isinstance(now, Infeasible):
        return
    more = softened(crowd("small", seed + 1, 4, 0.05), soft / 2, seed + 1)
    for number, drawn in enumerate(more):
        demand = replace(drawn, name=f"more-{number}")
        step = now.with_task(demand)
        event(f"quick: {step is not None}, by their mean: {bool(now.lean.contained)}")
        if step is None:
            continue
        # Everyone by the plan it has, judged from the beginning: the same verdict, the same costs.
        held = [
            replace(one, held=held_by(granted, step.scheduling))
            for one, granted in zip(step.demands, step.plans, strict=True)
        ]
        again = proven(settle(held, where))
        assert again.lean.costs[-1] <= step.lean.costs[-1]
        assert again.fast_bytes_used <= step.fast_bytes_used <= where.fast_bytes
        assert again.curve is not None
        assert step.curve is not None
        assert again.curve.background <= step.curve.background
        now = step


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([0.4, 0.9]),
    st.sampled_from([frozenset({way}) for way in Scheduling]),
)
def test_what_one_more_may_cost_among_soft_tasks_is_what_the_test_takes(
    seed: int, soft: float, load: float, ways: frozenset[Scheduling]
) -> None:
    tasks = softened(crowd("small", seed, 5, load), soft, seed)
    now = settle(tasks, crowded(tasks, 0.7, *ways))
    if isinstance(now, Infeasible) or now.curve is None:
        return
    (more,) = crowd("small", seed + 1, 1, 0.1)
    period, limit = instant_ns(more.period_s), instant_ns(more.deadline_s)
    most = now.curve.largest_cost(period, limit)
    test = DemandTest(
        [*(instant_ns(one.period_s) for one in tasks), period],
        [*(instant_ns(one.deadline_s) for one in tasks), limit],
    )
    costs, sections = [*now.lean.costs, most], [*now.lean.sections, most]
    background = max([0, *(sections[index] for index in now.lean.contained)])
    event(f"some by their mean: {bool(now.lean.contained)}")
    assert most <= 0 or test.worst(costs, sections, background)[0] == "holds"
