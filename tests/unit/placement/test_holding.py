"""What running pods hold is a constant: newcomers, nodes and profiles change nobody's plan."""

from dataclasses import replace

import pytest
from tests.unit.placement.fleets import (
    EXACT,
    MIB,
    claim,
    feed,
    fleet,
    node,
    places,
    plan_of_pod,
    profile,
    run,
    said,
    settle,
    task,
)

from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.optin import Standing
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.placement.books.seats import ClaimKey, DeviceKey, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.held import held_by

A0 = DeviceKey("a", "cpu0")


def resident(plan: TaskPlan) -> int:
    return len(plan.resident_extents)


def one_that_runs(**asked: object) -> Fleet:
    """A device of 64 MiB; a model of 48 MiB and 4 of workspace, with a deadline far away."""
    return fleet(node("a", fast_mib=64), profile("m", mib=48), task("old", of="m", **asked))  # type: ignore[arg-type]


def test_a_newcomer_is_planned_next_to_what_a_pod_holds() -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    before = plan_of_pod(seen, old)

    feed(seen, task("new", of="m", number=1))
    new = run(seen, "new")

    assert held_by(plan_of_pod(seen, old)) == held_by(before)
    together = resident(before) + resident(plan_of_pod(seen, new)) + before.ring_extents
    assert together + 4 <= 64


@pytest.mark.parametrize("crowd", [False, True], ids=["planned again", "put among others"])
@pytest.mark.parametrize("headroom", [0.0, 0.5, 0.75])
def test_the_headroom_is_what_a_task_alone_leaves_to_others(
    headroom: float, *, crowd: bool
) -> None:
    told = replace(EXACT, headroom=headroom, few_waiting=0 if crowd else 4)
    seen = fleet(node("a", fast_mib=64), profile("m", mib=48), task("m"), rules=told)

    plan = plan_of_pod(seen, run(seen, "m"))

    assert resident(plan) + plan.ring_extents + 4 <= 64 * (1 - headroom)
    assert (resident(plan) == 48) is (headroom == 0), "all that it could use"
    whole = task("m", policy=SwapPolicy.RESIDENT)
    seen = fleet(node("a", fast_mib=64), profile("m", mib=48), whole, rules=told)
    assert resident(plan_of_pod(seen, run(seen, "m"))) == 48, "what it needs it gets"


def test_a_place_that_is_only_kept_makes_room() -> None:
    seen = one_that_runs(policy=SwapPolicy.AUTO)
    feed(seen, task("more", of="m", number=1, policy=SwapPolicy.RESIDENT))

    assert places(seen, "more") == ["a/cpu0"]


def test_whoever_waits_for_what_a_pod_holds_is_told_how_much_and_by_whom() -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    too_much = resident(plan_of_pod(seen, old))
    assert 10 < too_much < 48, "half of what no deadline needs is left to others"

    feed(seen, task("new", of="m", number=1, policy=SwapPolicy.RESIDENT))
    status, reason, message = said(seen, "new")

    assert (status, reason) == ("False", "MemoryInsufficient")
    assert "of the 64 MiB of fast memory" in message
    assert "MiB are missing" in message
    assert "it would hold if pods of default/old started again, which hold" in message

    seen.drop_claim(old.key)
    feed(seen, claim("next", "old", number=2))
    assert places(seen, "new") == ["a/cpu0"]
    after = seen.seat_of(ClaimKey("default", "next"))
    assert after is not None
    assert after.plan is not None
    assert resident(after.plan) != too_much, "its next pod has a plan of its own"


def test_nobody_is_named_who_could_not_help() -> None:
    seen = one_that_runs()
    run(seen, "old")
    feed(seen, profile("big", mib=80))
    feed(seen, task("new", of="big", number=1, policy=SwapPolicy.RESIDENT))

    assert "started again" not in said(seen, "new")[2]


def test_a_changed_period_is_granted_by_the_plan_that_the_pod_holds() -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    before = held_by(plan_of_pod(seen, old))

    feed(seen, task("old", of="m", period_ms=50, generation=2))

    assert said(seen, "old")[:2] == ("True", "Admitted")
    assert held_by(plan_of_pod(seen, old)) == before


def test_a_change_that_takes_another_plan_waits_for_the_next_pod() -> None:
    seen = fleet(
        node("a", fast_mib=200, link_mib_s=1000),
        profile("m", mib=48),
        task("old", of="m", policy=SwapPolicy.STREAM),
    )
    old = run(seen, "old")
    before = held_by(plan_of_pod(seen, old))
    assert before.streamed_extents > 20

    feed(seen, task("old", of="m", period_ms=20, generation=2, policy=SwapPolicy.STREAM))
    status, reason, message = said(seen, "old")
    assert (status, reason) == ("True", "ChangeRefused")
    assert "it would hold if pods of default/old started again" in message
    feed(seen, task("old", of="m", generation=3, policy=SwapPolicy.RESIDENT))
    assert "its weights are to stay resident, and the plan streams a part" in said(seen, "old")[2]
    assert held_by(plan_of_pod(seen, old)) == before

    seen.drop_claim(old.key)
    settle(seen)
    assert said(seen, "old")[:2] == ("True", "Admitted")
    assert resident(plan_of_pod(seen, run(seen, "old"))) == 48


def test_a_slower_link_demotes_and_leaves_the_plan() -> None:
    seen = fleet(node("a", fast_mib=24), profile("m"), task("old", of="m", period_ms=30))
    old = run(seen, "old")
    before = held_by(plan_of_pod(seen, old))

    feed(seen, node("a", fast_mib=256, link_mib_s=1000))

    seat = seen.seat_of(old.key)
    assert seat is not None
    assert (seat.standing, seat.held) == (Standing.DEMOTED, before)
    assert said(seen, "old")[1] == "NoLongerHolds"
    seen.drop_claim(old.key)
    settle(seen)
    assert said(seen, "old")[0] == "True", "memory that was added serves the next pod"


def test_a_device_that_became_smaller_than_what_its_pod_holds_promises_nothing() -> None:
    seen = one_that_runs()
    old = run(seen, "old")

    feed(seen, node("a", fast_mib=24))
    settle(seen)

    seat = seen.seat_of(old.key)
    assert seat is not None
    assert seat.standing is Standing.LOST
    assert not seen.devices()[A0].planned


@pytest.mark.parametrize("kept", [True, False], ids=["next-to-a-kept-place", "alone"])
def test_a_device_whose_extents_changed_has_no_time_for_older_pods(*, kept: bool) -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    if kept:
        feed(seen, task("kept", of="m", number=1))

    feed(seen, node("a", fast_mib=64, extent_mib=2))
    feed(seen, task("new", of="m", number=2))

    seat = seen.seat_of(old.key)
    assert seat is not None
    assert seat.standing is Standing.LOST
    assert "in extents of 1Mi, and the device has extents of 2Mi now" in said(seen, "old")[2]
    assert "runs default/old: its pod's plan is in extents of 1Mi" in said(seen, "new")[2]
    feed(seen, node("b"))
    assert places(seen, "new") == ["b/cpu0"]


def test_a_restart_reads_from_the_claims_what_is_held() -> None:
    before = one_that_runs()
    old = run(before, "old")
    feed(before, task("new", of="m", number=1))
    new = run(before, "new")
    tasks = (task("old", of="m"), task("new", of="m", number=1))
    late = task("late", of="m", number=2, policy=SwapPolicy.RESIDENT)

    after = fleet(
        *(late, *reversed(tasks), new, old, profile("m", mib=48), node("a", fast_mib=64)),
    )

    for known in (old, new):
        assert held_by(plan_of_pod(after, known)) == known.held
    assert said(after, "late")[1] == "MemoryInsufficient"


@pytest.mark.parametrize(
    "later",
    [profile("m", mib=96), profile("m", mib=48, layers=1), None],
    ids=["more weights", "one large layer", "gone"],
)
def test_a_pod_runs_on_by_its_plan_whatever_becomes_of_its_profile(
    later: MemProfile | None,
) -> None:
    seen = fleet(node("a", fast_mib=24), profile("m", mib=48), profile("n", mib=8))
    feed(seen, task("old", of="m", policy=SwapPolicy.STREAM))
    old = run(seen, "old")
    before = plan_of_pod(seen, old)
    if later is None:
        seen.drop_profile("default", "m")
    else:
        seen.put_profile(later)
    feed(seen, task("new", of="n", number=1, policy=SwapPolicy.RESIDENT))

    assert plan_of_pod(seen, old).job_time_s == pytest.approx(before.job_time_s)
    assert held_by(plan_of_pod(seen, old)) == held_by(before)
    assert said(seen, "old")[0] == "True"
    assert places(seen, "new") == ["a/cpu0"], "the device is open to others"


def test_the_pod_that_follows_one_without_a_profile_is_measured() -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    seen.drop_profile("default", "m")
    settle(seen)

    seen.drop_claim(old.key)
    feed(seen, claim("next", "old"))

    seat = seen.seat_of(ClaimKey("default", "next"))
    assert seat is not None
    assert seat.standing == Standing.PROFILING


def test_a_lost_pod_holds_its_plan_until_that_is_noted() -> None:
    seen = one_that_runs()
    old = run(seen, "old")
    seen.drop_node("a")
    settle(seen)
    seat = seen.seat_of(old.key)
    assert seat is not None
    assert seat.standing == Standing.LOST

    feed(seen, node("a", fast_mib=64))
    assert (seat.standing, seat.held) == (Standing.PLANNED, old.held)


def test_homes_of_pods_stay_and_are_counted_before_their_device_is_proven() -> None:
    """On a restart nothing that is kept free for others takes the room of what is stored."""
    before = fleet(node("a", devices=2, dram_mib=100), profile("m", mib=64), task("old", of="m"))
    old = run(before, "old")
    assert places(before, "old") == ["a/cpu0"]
    moved = DeviceKey("a", "cpu1")
    other = claim("c-other", "other", place=moved, held=old.held, number=1)

    after = fleet(
        *(node("a", devices=2, dram_mib=100), profile("m", mib=64)),
        *(task("kept", of="m"), task("other", of="m", number=1), other),
    )

    assert said(after, "other")[0] == "True"
    assert said(after, "kept")[1] == "TierInsufficient"


def test_what_is_held_is_proven_with_the_links_as_they_are() -> None:
    seen = fleet(node("a", fast_mib=24), profile("m"), task("old", of="m"))
    old = run(seen, "old")
    first = plan_of_pod(seen, old)

    feed(seen, node("a", fast_mib=24, link_mib_s=5000))

    again = plan_of_pod(seen, old)
    assert held_by(again) == held_by(first)
    assert again.job_time_s > first.job_time_s
    assert first.resident_extents
    assert seen.verdict(TaskKey("default", "old")) is not None
    assert again.extent_bytes == MIB


def test_a_device_whose_jobs_yield_takes_tasks_that_another_cannot() -> None:
    """A long job and a short deadline: their pods hold how they share the device."""
    objects = (
        *(profile("slow", compute_ms=100, layers=16), profile("quick", compute_ms=2, mib=8)),
        *(task("long", of="slow", period_ms=1000), task("short", of="quick", period_ms=40)),
    )
    plain = fleet(node("a"), *objects)
    assert sorted(said(plain, name)[1] for name in ("long", "short")) == [
        "Admitted",
        "DeadlineInfeasible",
    ]

    seen = fleet(node("a", yields=True), *objects)
    long, short = run(seen, "long"), run(seen, "short")

    assert long.held is not None
    assert long.held.yielding is not None
    seat = seen.seat_of(long.key)
    assert seat is not None
    assert seat.scheduling is long.held.yielding.scheduling
    again = fleet(node("a", yields=True), *objects, short, long)
    for known in (long, short):
        found = again.seat_of(known.key)
        assert found is not None
        assert (found.standing, found.held) == (Standing.PLANNED, known.held)
    feed(again, profile("quick", compute_ms=2.5, mib=12))
    assert said(again, "short")[0] == said(again, "long")[0] == "True"


def test_who_came_first_and_does_not_yield_is_named() -> None:
    seen = fleet(
        *(node("a", yields=True), profile("slow", compute_ms=100, layers=16)),
        *(profile("quick", compute_ms=2, mib=8), task("long", of="slow", period_ms=1000)),
    )
    long = run(seen, "long")
    feed(seen, task("short", of="quick", period_ms=40, number=1))
    _, reason, message = said(seen, "short")
    assert reason == "DeadlineInfeasible"
    assert message.endswith("it would hold if pods of default/long started again: delete them")

    seen.drop_claim(long.key)
    settle(seen)
    assert said(seen, "short")[0] == said(seen, "long")[0] == "True"


def test_a_task_that_goes_on_changing_has_others_promised_nothing_new() -> None:
    """Bounds go up and down with it; one that still holds is not written again."""
    tasks = [task(f"t{n}", of="m", number=n, period_ms=600) for n in range(6)]
    seen = fleet(node("a", fast_mib=1024), profile("m", compute_ms=30), *tasks)
    claims = [run(seen, one.metadata.name, number=n) for n, one in enumerate(tasks)]

    def promised(generation: int, **changes: object) -> list[TaskPlan]:
        asked = {"of": "m", "number": 5, "period_ms": 600, **changes}
        feed(seen, task("t5", generation=generation, **asked))  # type: ignore[arg-type]
        return [plan_of_pod(seen, known) for known in claims[:5]]

    ways: tuple[dict[str, object], ...] = (
        {"criticality": Criticality.BEST_EFFORT},
        {},
        {"period_ms": 90},
        {"deadline_ms": 300},
    )
    for generation, change in enumerate(ways, 2):
        before = promised(generation, **change)
    assert all(plan.response_s is not None for plan in before)
    for generation, change in enumerate(ways * 2, 10):
        assert promised(generation, **change) == before
