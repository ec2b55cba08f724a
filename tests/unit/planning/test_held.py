"""What running pods hold is a constant of every plan: its memory, its ring, its homes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Unpack

import numpy as np
import pytest
from tests.simulation.tasksets import device_for, random_set
from tests.unit.planning.shapes import LINK, MoreOfTask, device, layout_of, task

from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.demand import SporadicTask, np_edf
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.held import held_by
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

MB = 10**6


def holding(demand: TaskDemand, by: TaskPlan) -> TaskDemand:
    return replace(demand, held=held_by(by))


def model(
    name: str, megabytes: int, *, period_ms: float = 1000, **more: Unpack[MoreOfTask]
) -> TaskDemand:
    """A layer a megabyte, 1 ms each."""
    size = {"megabytes": megabytes, "layers": megabytes}
    return task(name, period_ms, period_ms, megabytes, **size, **more)


def admitted(tasks: list[TaskDemand], on: DeviceCapacity) -> Admitted:
    answer = plan(tasks, on)
    assert isinstance(answer, Admitted), answer.sentence
    return answer


def test_a_plan_that_is_held_comes_out_as_it_was() -> None:
    old, new = model("old", 40), model("new", 40, policy=SwapPolicy.RESIDENT)
    (before,) = admitted([old], device(30)).plans
    assert 0 < len(before.resident_extents) < 40

    answer = plan([holding(old, before), new], device(30))
    assert isinstance(answer, Infeasible)
    assert answer.missing_bytes is not None
    more = device(30 + answer.missing_bytes // MB)
    after, _ = admitted([holding(old, before), new], more).plans

    assert after == replace(before, response_s=after.response_s)


def test_who_comes_shares_the_ring_and_may_have_a_larger_one() -> None:
    old = model("old", 20, policy=SwapPolicy.STREAM)
    (before,) = admitted([old], device(8)).plans
    new = model("new", 20, policy=SwapPolicy.STREAM)
    wide = replace(new, layout=layout_of([5 * MB] * 4, MB), compute_s=(0.005,) * 4)

    answer = admitted([holding(old, before), wide], device(30))
    after, second = answer.plans

    assert held_by(after) == held_by(before)
    assert second.ring_extents > before.ring_extents
    resident = len(after.resident_extents) + len(second.resident_extents)
    assert (resident + second.ring_extents) * MB == answer.fast_bytes_used


def test_missing_memory_is_told_next_to_what_is_held() -> None:
    old = model("old", 20, policy=SwapPolicy.RESIDENT)
    (before,) = admitted([old], device(25)).plans
    new = model("new", 20, policy=SwapPolicy.RESIDENT)

    answer = plan([holding(old, before), new], device(25))

    assert isinstance(answer, Infeasible)
    assert (answer.kind, answer.missing_bytes) == ("memory", 15 * MB)
    assert answer.sentence.startswith("running pods hold 19.1 MiB of the 23.9 MiB of fast memory: ")


def test_homes_that_are_held_come_first_and_are_shared() -> None:
    tiers = {"dram": TierCapacity(25 * MB, LINK), "nvme": TierCapacity(90 * MB, LINK)}
    on = device(100, tiers=tiers)
    old = model("old", 20, tiers=("dram", "nvme"), weights_digest="x")
    first = model("first", 20, tiers=("dram", "nvme"))
    same = model("same", 20, tiers=("dram", "nvme"), weights_digest="x")
    (before,) = admitted([old], on).plans

    found = admitted([first, same, holding(old, before)], on).plans

    assert [Counter(p.home_of_extent) for p in found] == [
        {"dram": 5, "nvme": 15},
        {"dram": 20},
        {"dram": 20},
    ]
    without = device(100, tiers={"nvme": tiers["nvme"]})
    refusal = plan([holding(old, before)], without)
    assert isinstance(refusal, Infeasible)
    assert "live in dram, which this device does not have any more" in refusal.sentence


def test_less_memory_is_made_do_with_where_it_is_enough() -> None:
    easy, tight = model("a", 20), model("a", 20, period_ms=21)

    for demand, resident in ((easy, 10), (tight, 20)):
        answer = plan([demand], device(40), within_bytes=10 * MB)
        assert isinstance(answer, Admitted)
        assert len(answer.plans[0].resident_extents) <= resident
        assert (answer.fast_bytes_used <= 10 * MB) == (demand is easy)


@pytest.mark.parametrize(
    ("resident", "ring", "wrong"),
    [
        (range(20), 0, None),
        (range(10), 1, None),
        (range(10), 0, "layer 10 now reads 1 streamed extents and the plan's ring has 0"),
        (range(21), 0, "20 extents of 1000000 bytes, and the plan is for 21"),
    ],
    ids=["resident", "streams", "no ring", "other weights"],
)
def test_a_plan_that_does_not_fit_the_layers_is_refused(
    resident: range, ring: int, wrong: str | None
) -> None:
    demand = model("a", 20)
    (made,) = admitted([demand], device(30)).plans
    count = max(20, len(resident))
    held = replace(
        held_by(made), resident_extents=tuple(resident), ring_extents=ring, extent_count=count
    )

    found = held.misfit(demand.layout)

    assert (found is None) if wrong is None else (found is not None and wrong in found)
    if wrong is not None:
        with pytest.raises(ValueError, match="cannot plan task a by what its pod holds"):
            replace(demand, held=held)


def test_whose_jobs_yield_is_held_as_well() -> None:
    """A long job that came first keeps the device to its end, until its pod starts again."""
    ways = frozenset(Scheduling)
    on = replace(device(200), supports=ways)
    long = task("long", 1000, 1000, 100)
    short = task("short", 50, 20, 5)
    (first,) = admitted([long], on).plans
    assert not first.preemptible

    assert isinstance(plan([holding(long, first), short], on), Infeasible)
    both = admitted([long, short], on)
    assert [granted.preemptible for granted in both.plans] == [True, False]

    held = [
        replace(demand, held=held_by(granted, both.scheduling))
        for demand, granted in zip((long, short), both.plans, strict=True)
    ]
    third = admitted([*held, task("third", 2000, 2000, 10)], on)
    assert third.scheduling is both.scheduling
    for before, after in zip(both.plans, third.plans[:2], strict=True):
        assert held_by(after, third.scheduling) == held_by(before, both.scheduling)
        assert (after.layer_s, after.penalty_s) == (before.layer_s, before.penalty_s)

    alone = admitted([held[0]], on)
    assert alone.plans[0].preemptible, "what the agent was told stays so"
    never = plan(held, device(200))
    assert isinstance(never, Infeasible)
    assert "this device's agent does not do that any more" in never.sentence
    dirty = replace(task("dirty", 2000, 2000, 10, workspace_bytes=MB), preserved_bytes=MB)
    refused = plan([*held, dirty], on)
    assert isinstance(refused, Infeasible)
    assert "the workspace of dirty is to be preserved" in refused.sentence


def test_activations_of_those_who_yield_are_held() -> None:
    on = replace(device(26), supports=frozenset(Scheduling))
    long = task("long", 1000, 1000, 100, workspace_bytes=2 * MB)
    both = admitted([long, task("short", 50, 20, 5)], on)
    parked = both.plans[0].parked_bytes
    assert parked >= 2 * MB
    old = replace(long, held=held_by(both.plans[0], both.scheduling))

    answer = plan([old, task("large", 1000, 1000, 1, policy=SwapPolicy.RESIDENT)], on)
    assert isinstance(answer, Admitted)
    assert answer.fast_bytes_used == (10 + 10 + 2) * MB + parked
    more = plan([old, model("larger", 15, policy=SwapPolicy.RESIDENT)], on)
    assert isinstance(more, Infeasible)
    assert more.missing_bytes == 29 * MB - on.fast_bytes


@pytest.mark.slow
def test_random_sets_grow_next_to_what_is_held() -> None:
    """Whatever is admitted later: sums fit, plans stay, and the exact test accepts all of them."""
    grown = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tasks = random_set(rng, float(rng.uniform(0.1, 0.5)))
        on = device_for(tasks, float(rng.uniform(1.2, 2.5)))
        held: list[TaskDemand] = []
        for demand in tasks:
            answer = plan([*held, demand], on, within_bytes=on.fast_bytes // 2)
            if isinstance(answer, Infeasible):
                continue
            for known, got in zip(held, answer.plans[:-1], strict=True):
                assert held_by(got) == known.held
            assert answer.fast_bytes_used <= on.fast_bytes
            promised = [
                SporadicTask(d.name, d.period_s, d.deadline_s, p.job_time_s)
                for d, p in zip([*held, demand], answer.plans, strict=True)
            ]
            assert np_edf(promised).ok
            held.append(holding(demand, answer.plans[-1]))
        grown += len(held) > 1
    assert grown > 40
