"""Homes in the lower tiers: in order, shared inside a domain, and refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.mixedsets import mixed_device, mixed_set
from tests.simulation.preemptive import attack
from tests.unit.planning.shapes import LINK, device, task

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, HomeRun, HomesBy, Infeasible, TaskPlan
from tierline_operator.planning.homes.placing import Placement, placements, runs
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

MB = 10**6


def tiers(**sizes: int) -> dict[str, TierCapacity]:
    return {name: TierCapacity(size * MB, LINK) for name, size in sizes.items()}


def wanting(name: str, *allowed: str, digest: str = "", domain: str = "default") -> TaskDemand:
    return task(name, 100, 100, 1, tiers=allowed, weights_digest=digest, domain=domain)


def on(**sizes: int) -> DeviceCapacity:
    return device(1000, tiers=tiers(**sizes))


def placed(tasks: list[TaskDemand], by: HomesBy, **sizes: int) -> list[list[HomeRun]]:
    found = placements(tasks, on(**sizes))
    assert not isinstance(found, Infeasible)
    (homes,) = [one.homes for one in found if one.by is by]
    return [list(runs(home)) for home in homes]


def test_the_first_allowed_tier_with_room_is_taken_extent_by_extent() -> None:
    first, second = placed(
        [wanting("a", "dram", "nvme"), wanting("b", "dram", "nvme")],
        HomesBy.ORDER,
        nvme=100,
        dram=14,
    )
    assert first == [HomeRun("dram", 10)]
    assert second == [HomeRun("dram", 4), HomeRun("nvme", 6)]


def test_equal_weights_of_one_domain_are_stored_once() -> None:
    same = [wanting("a", "dram", digest="x"), wanting("b", "dram", digest="x")]
    assert placed(same, HomesBy.ORDER, dram=10) == [[HomeRun("dram", 10)]] * 2

    other = [wanting("a", "dram", digest="x"), wanting("b", "dram", digest="x", domain="other")]
    refused = placements(other, on(dram=10))
    assert isinstance(refused, Infeasible)


def test_a_full_tier_is_said_with_what_is_missing() -> None:
    refused = placements([wanting("a", "dram"), wanting("b", "dram")], on(dram=12, nvme=99))
    assert isinstance(refused, Infeasible)
    assert (refused.kind, refused.reason, refused.task) == ("tier", "TierFull", "b")
    assert refused.missing_bytes == 8 * MB
    assert "7.6 MiB are missing" in refused.sentence


def test_a_tier_the_device_does_not_have_is_no_home() -> None:
    refused = placements([wanting("a", "pmem")], on(dram=12))
    assert isinstance(refused, Infeasible)
    assert refused.reason == "TierUnknown"
    assert "only live in pmem" in refused.sentence
    assert "dram" in refused.sentence


def test_a_scarce_tier_goes_by_gain_first_and_then_in_order() -> None:
    """Both are proven in that order; what gains most alternates along its stream."""
    patient = task("patient", 4000, 4000, 1, megabytes=20, tiers=("dram", "nvme"))
    urgent = task("urgent", 600, 600, 150, megabytes=10, tiers=("dram", "nvme"))
    slow = TierCapacity(100 * MB, LinkRate(20e6))
    where = device(10, tiers={"dram": TierCapacity(10 * MB, LINK), "nvme": slow})
    found = placements([patient, urgent], where)
    assert not isinstance(found, Infeasible)
    assert [one.by for one in found] == [HomesBy.GAIN, HomesBy.ORDER]
    gained, ordered = found
    assert [Counter(homes) for homes in ordered.homes] == [
        {"dram": 10, "nvme": 10},
        {"nvme": 10},
    ]
    assert Counter(gained.homes[1])["dram"] > 0
    assert len(runs(gained.homes[1])) > 2


def test_what_prefers_a_slow_tier_gets_a_fast_one_where_a_deadline_needs_it() -> None:
    slow = TierCapacity(100 * MB, LinkRate(20e6))
    where = device(4, tiers={"dram": TierCapacity(20 * MB, LINK), "nvme": slow})
    easy = task("easy", 2000, 2000, 5, tiers=("nvme", "dram"))
    (granted,) = admitted([easy], where)
    assert set(granted.home_of_extent) == {"nvme"}
    hasty = task("hasty", 300, 300, 5, tiers=("nvme", "dram"))
    (granted,) = admitted([hasty], where)
    assert (granted.homes_by, "dram" in granted.home_of_extent) == (HomesBy.GAIN, True)


def test_what_stays_does_not_move_for_one_more() -> None:
    slow = TierCapacity(100 * MB, LinkRate(20e6))
    where = device(60, tiers={"dram": TierCapacity(15 * MB, LINK), "nvme": slow})
    first, second = wanting("a", "dram", "nvme"), wanting("b", "dram", "nvme")
    now = admit(settle_one(first, where), replace(second, period_s=0.01, deadline_s=0.01))
    assert isinstance(now, ProvenSet)
    assert set(now.plans[0].home_of_extent) == {"dram"}
    assert "nvme" in now.plans[1].home_of_extent


def settle_one(only: TaskDemand, where: DeviceCapacity) -> ProvenSet:
    proven = settle([only], where)
    assert isinstance(proven, ProvenSet)
    return proven


def admitted(tasks: list[TaskDemand], where: DeviceCapacity) -> tuple[TaskPlan, ...]:
    answer = plan(tasks, where)
    assert isinstance(answer, Admitted), answer
    return answer.plans


def test_no_set_is_refused_that_holds_filled_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And some that do not are admitted, which are more than the others."""
    counts = Counter[tuple[bool, bool]]()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tasks = [replace(one, tiers=("dram", "nvme")) for one in mixed_set(rng)]
        where = mixed_device(rng, tasks)
        where = replace(where, in_turn=bool(seed % 2))
        nvme = where.tiers["nvme"]
        slow = replace(nvme, link=replace(nvme.link, bandwidth_bytes_per_s=60e6))
        where = replace(where, tiers={**where.tiers, "nvme": slow})
        with monkeypatch.context() as before:
            before.setattr(planner, "placements", in_order)
            held_before = plan(tasks, where).ok
        counts[held_before, plan(tasks, where).ok] += 1
    assert not counts[True, False]
    assert counts[False, True]


def in_order(
    tasks: Sequence[TaskDemand], where: DeviceCapacity
) -> tuple[Placement, ...] | Infeasible:
    found = placements(tasks, where)
    if isinstance(found, Infeasible):
        return found
    return tuple(one for one in found if one.by is HomesBy.ORDER)


def test_equal_weights_have_one_place_by_gain_too() -> None:
    same = [
        task(n, p, p, 1, tiers=("dram", "nvme"), weights_digest="x")
        for n, p in (("a", 1000), ("b", 500))
    ]
    found = placements([*same, wanting("c", "dram", "nvme")], on(dram=15, nvme=99))
    assert not isinstance(found, Infeasible)
    for one in found:
        assert one.homes[0] == one.homes[1]
        stored = Counter(one.homes[0]) + Counter(one.homes[2])
        assert stored["dram"] <= 15


@pytest.mark.slow
def test_streams_from_two_tiers_hold_under_attack_at_once_and_in_turn() -> None:
    streamed = 0
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        tasks = mixed_set(rng)
        gpu = bool(seed % 2)
        where = replace(
            mixed_device(rng, tasks),
            in_turn=gpu,
            yields_while_waiting=not gpu,
            supports=frozenset(Scheduling),
        )
        answer = plan(tasks, where)
        if not isinstance(answer, Admitted):
            continue
        streamed += any(
            granted.streamed_bytes and len(set(granted.home_of_extent)) > 1
            for granted in answer.plans
        )
        windows = [answer.critical_time_s]
        seen = attack(*(tasks, answer.plans, where, answer.scheduling, windows, rng), horizon_s=1.0)
        assert seen.missed_runs == 0
        for granted, worst_s in zip(answer.plans, seen.worst_response_s, strict=True):
            assert granted.response_s is None or worst_s <= granted.response_s + 3e-9
    assert streamed > 3
