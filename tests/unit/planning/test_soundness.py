"""Random task sets: nothing admitted misses under attack, everything refused has a witness.

The same as `python -m tests.bench.admission`, on a small sample, plus the traps of admission that
need the two engines to show: each test here fails if its guard is taken out of the planner.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.bench import preemption
from tests.bench.admission import Cell, examine
from tests.simulation import preemptive
from tests.simulation.attack import attack, machine_of, sim_tasks, witness
from tests.simulation.device import Releases, SimTask, simulate
from tests.simulation.engines import DeadlockError, Machine, run_job
from tests.simulation.mixedsets import EXTENT_BYTES, mixed_device, mixed_set
from tests.spans import largest_span
from tests.unit.planning.shapes import device, layout_of, random_layout, task

from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.demand import SporadicTask, np_edf
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.jobs.pipeline import NEVER, LinkRate, Pipeline
from tierline_operator.planning.planner import plan


def test_the_recursion_is_what_the_engines_do() -> None:
    rng = np.random.default_rng(10)
    deadlocks = 0
    for _ in range(300):
        layout = random_layout(rng, arenas=int(rng.integers(1, 3)))
        links = [LinkRate(100.0, 0.05), LinkRate(float(rng.choice([40.0, 300.0])))]
        machine = Machine(
            layout=layout,
            compute_s=[float(x) for x in rng.random(layout.layer_count) * 2],
            resident=layout.pinned_extents
            | {x for x in range(layout.extent_count) if rng.random() < 0.3},
            ring_extents=int(rng.integers(1, 6)),
            link_of_extent=[int(rng.integers(2)) for _ in range(layout.extent_count)],
            links=links,
            busy_s=float(rng.choice([0.0, 0.7])),
        )
        pipeline = Pipeline(
            layout, machine.compute_s, machine.link_of_extent, links, machine.busy_s
        )
        predicted = pipeline.total_s(machine.resident, machine.ring_extents)
        if predicted == NEVER:
            deadlocks += 1
            with pytest.raises(DeadlockError):
                run_job(machine)
            continue
        assert run_job(machine) == pytest.approx(predicted, rel=1e-12)
        for _ in range(3):
            shorter = run_job(machine, lambda: rng.uniform(0, 1), lambda: rng.uniform(0, 1))
            assert shorter <= predicted + 1e-9
    assert 20 < deadlocks < 250


@pytest.mark.slow
def test_forty_random_sets() -> None:
    """0 misses where admitted; where refused, the nearest plan misses as the verdict says."""
    seen = [
        examine(Cell(load, ratio), seed)
        for seed in range(10)
        for load in (0.1, 0.3)
        for ratio in (1.5, 3.0)
    ]
    assert len(seen) == 40
    assert sum(outcome.admitted for outcome in seen) > 10
    assert sum(outcome.missed_runs for outcome in seen) == 0
    refused = [outcome for outcome in seen if outcome.simulated_refusal]
    assert len(refused) > 5
    assert all(not outcome.held_in_simulation for outcome in refused)


@pytest.mark.slow
@pytest.mark.parametrize("scheduling", [Scheduling.LAYER_PREEMPTIVE, Scheduling.RING_KEEPING])
def test_tight_preemptive_sets_hold_under_attack(scheduling: Scheduling) -> None:
    figures = preemption.Tight()
    preemption.examine(preemption.drawn(6, 0.4), scheduling, 6, figures)
    assert figures.sets == 1
    assert figures.runs > 30
    assert figures.preemptions > 100
    assert figures.rings_lost > 20
    assert figures.missed_runs == figures.broken_bounds == 0


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("scheduling", Scheduling)
def test_mixed_sets_keep_deadlines_bounds_and_memory(scheduling: Scheduling, gpu: bool) -> None:
    admitted = 0
    for seed in range(36):
        rng = np.random.default_rng(seed)
        tasks = mixed_set(rng)
        on = replace(mixed_device(rng, tasks), yields_while_waiting=not gpu)
        answer = plan(tasks, on, give_spare=bool(seed % 3), scheduling=scheduling)
        if isinstance(answer, Infeasible):
            continue
        admitted += 1
        rings = dict.fromkeys((task.domain for task in tasks), 0)
        for task_, got in zip(tasks, answer.plans, strict=True):
            rings[task_.domain] = max(rings[task_.domain], got.ring_extents)
        extents = sum(len(got.resident_extents) for got in answer.plans) + sum(rings.values())
        needed = extents * EXTENT_BYTES + sum(got.parked_bytes for got in answer.plans)
        needed += max(got.workspace_bytes for got in answer.plans)
        assert needed == answer.fast_bytes_used <= on.fast_bytes
        windows = [min(answer.critical_time_s, 1.0)]
        seen = preemptive.attack(
            tasks, answer.plans, on, answer.scheduling, windows, rng, horizon_s=0.5, random_runs=1
        )
        assert seen.missed_runs == 0
        for got, worst in zip(answer.plans, seen.worst_response_s, strict=True):
            assert got.response_s is None or worst <= got.response_s + 2e-9
    assert admitted > 4


def test_t1_a_plan_admitted_without_blocking_misses() -> None:
    sims = [SimTask(0.02, 0.01, 0.004), SimTask(0.1, 0.1, 0.03)]
    seen = witness(sims, blocker=1, critical_s=0.01)
    assert seen.misses > 0
    assert seen.latest_s == pytest.approx(0.024, abs=1e-8)
    as_tasks = [
        SporadicTask(str(index), sim.period_s, sim.deadline_s, sim.full_s)
        for index, sim in enumerate(sims)
    ]
    assert not np_edf(as_tasks).ok


def test_t2_a_plan_admitted_by_the_larger_of_compute_and_copy_misses() -> None:
    # Two tasks of 10 extents, 10 ms each over the link, and 100 ms of compute: max() says 100 ms.
    tasks = [task(name, 400, 205, 100, policy=SwapPolicy.SWAP) for name in ("first", "second")]
    on = device(6, blocked_extents=0)
    naive = [
        SporadicTask(t.name, t.period_s, t.deadline_s, max(sum(t.compute_s), 0.1)) for t in tasks
    ]
    assert np_edf(naive).ok
    answer = plan(tasks, on)
    assert isinstance(answer, Infeasible)
    sims = sim_tasks(tasks, answer.nearest, on, np.random.default_rng(0))
    assert witness(sims, blocker=None, critical_s=0.205).misses > 0


def test_t9_no_admitted_plan_deadlocks() -> None:
    rng = np.random.default_rng(11)
    streamed = 0
    for _ in range(40):
        layout = layout_of([int(size) for size in rng.integers(1, 600, size=8)])
        demand = replace(task("wide", 60000, 60000, 10, layers=8), layout=layout)
        on = device(layout.extent_count * 70 / 1e6)
        answer = plan([demand], on)
        if isinstance(answer, Infeasible):
            assert answer.kind == "ring"
            continue
        (got,) = answer.plans
        assert run_job(machine_of(demand, got, on)) <= got.job_time_s + 1e-9
        streamed += got.streamed_bytes > 0
    assert streamed > 20


def test_t9_where_the_ring_for_a_wide_layer_does_not_fit_part_of_it_stays() -> None:
    layout = layout_of([100, 100, 800, 100, 100, 100, 100, 100])
    demand = replace(task("wide", 60000, 60000, 10, layers=8), layout=layout)
    on = device(800 / 1e6)
    answer = plan([demand], on)
    assert isinstance(answer, Admitted)
    (got,) = answer.plans
    assert 0 < got.ring_extents < largest_span(layout) == 8
    assert len(got.resident_extents) >= 8 - got.ring_extents
    assert run_job(machine_of(demand, got, on)) <= got.job_time_s + 1e-9
    with pytest.raises(DeadlockError):
        run_job(replace(machine_of(demand, got, on), resident=frozenset()))


def test_t10_self_pushing_misses_in_a_later_job() -> None:
    sims = [
        SimTask(0.045, 0.031, 0.009),
        SimTask(0.025, 0.025, 0.015),
        SimTask(0.044, 0.032, 0.007),
    ]
    seen = simulate(sims, Releases([1.0, 1.0, 1.0]), until_s=1.5)
    assert seen.misses > 0
    first_jobs = simulate(sims, Releases([1.0, 1.0, 1.0]), until_s=1.02)
    assert first_jobs.misses == 0
    tasks = [SporadicTask(str(i), s.period_s, s.deadline_s, s.full_s) for i, s in enumerate(sims)]
    assert not np_edf(tasks).ok


def test_t12_a_set_that_fits_to_the_nanosecond_is_admitted_and_holds() -> None:
    tasks = [task("a", 40, 10, 5), task("b", 40, 40, 5)]
    on = device(100)
    answer = plan(tasks, on)
    assert isinstance(answer, Admitted)
    assert answer.slack_s == 0
    rng = np.random.default_rng(12)
    sims = sim_tasks(tasks, answer.plans, on, rng)
    assert attack(sims, [answer.critical_time_s], rng).missed_runs == 0
    assert not plan([task("a", 40, 10, 5), task("b", 40, 40, 5.00001)], on).ok
