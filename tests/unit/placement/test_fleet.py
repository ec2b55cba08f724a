"""Placement as a user meets it: what gets which device, what waits and why, what changes move."""

import json
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.placement.fleets import (
    EXACT,
    MIB,
    allocated,
    claim,
    feed,
    fleet,
    node,
    places,
    profile,
    quota,
    run,
    said,
    settle,
    task,
)

from tierline_api.objects.conditions import Condition, ConditionStatus, ConditionType
from tierline_api.objects.memnode import Health
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import TierQuota
from tierline_api.objects.memtask import MemTask, Training
from tierline_api.objects.memtask_status import Granted, MemTaskStatus, Phase
from tierline_api.objects.optin import Standing
from tierline_api.objects.plan import Tier
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.placement.books.rules import WHOLE_DEVICE, Rules
from tierline_operator.placement.books.seats import ClaimKey, DeviceKey, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.needs.fitting import Worker

A0, B0 = DeviceKey("a", "cpu0"), DeviceKey("b", "cpu0")


def test_a_task_keeps_a_place_before_it_has_a_pod() -> None:
    seen = fleet(node("a"), profile("m"), task("m"))

    assert places(seen, "m") == ["a/cpu0"]
    status, reason, message = said(seen, "m")
    assert (status, reason) == ("True", "Admitted")
    assert "has its place on a/cpu0: a job ends at most 10 ms after its release" in message


def test_a_pods_claim_takes_the_place_that_was_kept() -> None:
    seen = fleet(node("a"), node("b"), profile("m"), task("m"))
    kept = places(seen, "m")

    feed(seen, claim("c", "m"))

    assert places(seen, "m") == kept
    seat = seen.seat_of(ClaimKey("default", "c"))
    assert seat is not None
    assert seat.plan is not None


def test_tasks_spread_over_devices_by_load() -> None:
    seen = fleet(node("a"), node("b"), profile("m"))
    feed(seen, *(task(f"t{n}", of="m", number=n) for n in range(4)))

    assert sorted(places(seen, f"t{n}")[0] for n in range(4)) == ["a/cpu0"] * 2 + ["b/cpu0"] * 2


def test_what_does_not_fit_waits_with_its_reason_and_starts_when_another_goes() -> None:
    seen = fleet(node("a"), profile("m", compute_ms=40))
    feed(seen, *(task(f"t{n}", of="m", number=n) for n in range(3)))

    status, reason, message = said(seen, "t2")
    assert (status, reason) == ("False", "DeadlineInfeasible")
    assert "120 % of the device's time" in message
    assert seen.waiting() == [TaskKey("default", "t2")]

    seen.drop_task(TaskKey("default", "t0"))
    settle(seen)

    assert places(seen, "t2") == ["a/cpu0"]
    assert seen.waiting() == []


def test_missing_memory_is_named_in_bytes() -> None:
    seen = fleet(
        node("a", fast_mib=32), profile("m", mib=64), task("m", policy=SwapPolicy.RESIDENT)
    )

    _, reason, message = said(seen, "m")
    assert reason == "MemoryInsufficient"
    assert "36 MiB are missing" in message


def test_of_those_who_wait_the_older_is_served_first() -> None:
    seen = fleet(node("a"), profile("m", compute_ms=60))
    feed(seen, task("running", of="m"))
    feed(seen, task("younger", of="m", number=9), task("older", of="m", number=3))

    seen.drop_task(TaskKey("default", "running"))
    settle(seen)

    assert places(seen, "older") == ["a/cpu0"]
    assert seen.waiting() == [TaskKey("default", "younger")]


def test_a_small_task_goes_ahead_of_one_that_does_not_fit() -> None:
    seen = fleet(node("a"), profile("big", compute_ms=60), profile("small", compute_ms=10))
    feed(seen, task("one", of="big"), task("two", of="big", number=1))
    feed(seen, task("three", of="small", number=2))

    assert seen.waiting() == [TaskKey("default", "two")]
    assert places(seen, "three") == ["a/cpu0"]


def test_each_replica_has_its_own_place() -> None:
    seen = fleet(node("a"), node("b"), profile("m", compute_ms=60), task("m", replicas=3))

    assert sorted(places(seen, "m")) == ["a/cpu0", "b/cpu0"]
    status, _, message = said(seen, "m")
    assert status == "False"
    assert message.startswith("2 of 3 pods have a place; fits on none of 2 devices; nearest is")


def test_pods_beyond_the_replicas_are_placed_and_leave_nothing() -> None:
    seen = fleet(node("a"), profile("m"), task("m"), claim("one", "m"), claim("two", "m"))
    assert len(places(seen, "m")) == 2

    seen.drop_claim(ClaimKey("default", "two"))
    settle(seen)
    assert len(places(seen, "m")) == 1

    seen.drop_claim(ClaimKey("default", "one"))
    settle(seen)
    assert len(places(seen, "m")) == 1, "one place is kept for the task's next pod"


def test_no_device_of_the_kind() -> None:
    seen = fleet(node("a"), profile("m"), task("m", model="H200"))

    assert said(seen, "m") == (
        "False",
        "NoMatchingDevice",
        "none of 1 devices is of kind cpu whose product name holds 'H200'; "
        "change spec.device or add such a node",
    )
    feed(seen, node("b", product="NVIDIA H200"))
    assert said(seen, "m")[1] == "ProfileMissing"


def _training(limit_ms: float | None = None) -> MemTask:
    asked = task("trains", criticality=Criticality.BEST_EFFORT, limit_ms=limit_ms)
    spec = asked.spec.model_copy(update={"training": Training()})
    return asked.model_copy(update={"spec": spec})


def _step(compute_ms: float, state_mib: int) -> MemProfile:
    measured = profile("trains", mib=0, layers=1, compute_ms=compute_ms)
    update = {"state_bytes": state_mib * MIB, "first_section_s": 0.005}
    return measured.model_copy(update={"spec": measured.spec.model_copy(update=update)})


def test_a_task_that_trains_is_placed_where_the_agent_runs_steps() -> None:
    seen = fleet(node("a", training=False), _step(400, 64), _training())
    assert said(seen, "trains") == (
        "False",
        "NoMatchingDevice",
        "none of 1 devices is of kind cpu and runs tasks with spec.training; "
        "change spec.device or add such a node",
    )
    feed(seen, node("b", yields=True))
    assert places(seen, "trains") == ["b/cpu0"]


def test_a_task_that_trains_takes_no_deadline_and_has_its_state() -> None:
    seen = fleet(node("a", yields=True, fast_mib=256), profile("m"), _step(400, 64))
    feed(seen, task("m"), _training())
    assert (places(seen, "m"), places(seen, "trains")) == (["a/cpu0"], ["a/cpu0"])
    verdict = seen.verdict(TaskKey("default", "trains"))
    assert verdict is not None
    (seat,) = verdict.seats
    assert seat.plan is not None
    assert seat.plan.workspace_bytes >= 64 * MIB
    assert said(seen, "m")[:2] == ("True", "Admitted")


def test_a_task_that_trains_is_measured_while_others_run_by_the_limit_of_its_sections() -> None:
    seen = fleet(node("a", yields=True), profile("m"), task("m"), claim("one", "m"))
    feed(seen, _training(limit_ms=20), claim("two", "trains"))
    verdict = seen.verdict(TaskKey("default", "trains"))
    assert verdict is not None
    (seat,) = verdict.seats
    assert (seat.standing, str(seat.place)) == (Standing.PROFILING, "a/cpu0")


def test_a_profile_of_another_product_serves_only_with_a_stated_time() -> None:
    seen = fleet(node("a"), profile("m", product="Other"), task("m"))

    _, reason, message = said(seen, "m")
    assert reason == "ProfileMissing"
    assert "was measured on Other and this device is Trial CPU" in message


def test_a_stated_worst_below_the_measured_mean_is_an_invalid_spec() -> None:
    seen = fleet(node("a"), _with_means(profile("m", compute_ms=8)), _stating("m", 7.9))

    _, reason, message = said(seen, "m")
    assert reason == "InvalidSpec"
    assert "executionTime 7.9ms is to be the worst of a job, and its mean" in message


def test_a_time_stated_before_that_was_wrong_does_not_stand_in_the_way_of_other_changes() -> None:
    model = profile("m", compute_ms=8)
    seen = fleet(node("a"), model, _stating("m", 7.9))
    run(seen, "m")
    feed(seen, _with_means(model))
    assert said(seen, "m")[:2] == ("True", "Admitted"), "its pod runs by what it holds"

    feed(seen, _stating("m", 7.9, period_ms=90, generation=2))
    assert _granted(seen, "m") == (0.09, 0.0079)
    assert said(seen, "m")[:2] == ("True", "Admitted")

    feed(seen, _stating("m", 7.8, period_ms=90, generation=3))
    assert _granted(seen, "m") == (0.09, 0.0079)
    assert "executionTime 7.8ms is to be the worst of a job" in said(seen, "m")[2]


@pytest.mark.parametrize("measured", [True, False])
def test_what_contradicts_itself_and_was_stored_before_it_was_refused_is_told(
    *, measured: bool
) -> None:
    wrong = _stating("new", 50, limit_ms=20, number=1)
    seen = fleet(node("a"), profile("m"), task("m"), wrong, claim("one", "m"), claim("two", "new"))
    if measured:
        feed(seen, profile("new"))

    verdict = seen.verdict(TaskKey("default", "new"))
    assert verdict is not None
    assert verdict.granted is None
    assert (
        "spec.realtime: measuringLimit 20ms is shorter than executionTime 50ms; "
        "a job that takes longer is ended" in f"{verdict.admitted} {verdict.profiled}"
    )
    assert said(seen, "m")[0] == "True"
    feed(seen, _stating("new", 20, limit_ms=20, number=1, generation=2))
    assert _granted(seen, "new") == (0.1, 0.02)


def _stating(name: str, worst_ms: float, **more: Any) -> MemTask:
    """A task that states its execution time."""
    asked = task(name, **more)
    realtime = asked.spec.realtime.model_copy(update={"execution_time_s": worst_ms / 1000})
    spec = asked.spec.model_copy(update={"realtime": realtime})
    return asked.model_copy(update={"spec": spec})


def _with_means(model: MemProfile) -> MemProfile:
    """The profile, each layer of which takes its worst time on average."""
    layers = tuple(
        one.model_copy(update={"mean_compute_time_s": one.compute_time_s})
        for one in model.spec.layers
    )
    return model.model_copy(update={"spec": model.spec.model_copy(update={"layers": layers})})


def _granted(seen: Fleet, name: str) -> tuple[float, float | None]:
    """Period and execution time by which a task runs."""
    verdict = seen.verdict(TaskKey("default", name))
    assert verdict is not None
    assert verdict.granted is not None
    return verdict.granted.realtime.period_s, verdict.granted.realtime.execution_time_s


def test_an_allocated_claim_is_the_truth() -> None:
    seen = fleet(node("a"), node("b"), profile("m"), task("m"), claim("c", "m", place=B0))

    assert places(seen, "m") == ["b/cpu0"]

    feed(seen, claim("c", "m", place=A0))
    assert places(seen, "m") == ["a/cpu0"]


def test_a_claim_without_its_task_closes_the_device() -> None:
    seen = fleet(node("a"), profile("m"), claim("stray", "gone", place=A0), task("m"))

    _, reason, message = said(seen, "m")
    assert reason == "Pending"
    assert "runs claims without a MemTask (stray); delete their pods" in message

    seen.drop_claim(ClaimKey("default", "stray"))
    settle(seen)
    assert places(seen, "m") == ["a/cpu0"]


def test_a_claim_without_its_task_takes_what_is_noted_in_it() -> None:
    seen = fleet(node("a", fast_mib=100), profile("m", mib=40), task("m"))
    running = run(seen, "m")
    key, seat = TaskKey("default", "m"), seen.seat_of(running.key)
    assert seat is not None

    seen.drop_task(key)
    settle(seen)
    assert seen.verdict(key) is None
    kept = seen.seat_of(running.key)
    assert kept is not None
    assert kept.held == seat.held

    # with it, with what it leaves; as well for an operator that never saw its task
    again = fleet(node("a", fast_mib=100), profile("m", mib=40), running)
    for one in (seen, again):
        feed(one, task("small", of="m", policy=SwapPolicy.RESIDENT))
        feed(one, task("large", of="m", policy=SwapPolicy.RESIDENT, number=1))
        assert places(one, "small") == ["a/cpu0"]
        assert said(one, "large")[:2] == ("False", "MemoryInsufficient")

    feed(seen, task("m"))
    assert places(seen, "m") == ["a/cpu0"]
    seen.drop_task(key)
    again.drop_claim(running.key)
    seen.drop_claim(running.key)
    for one in (seen, again):
        settle(one)
        assert places(one, "large") == ["a/cpu0"]
        assert one.spec_of(key) is None


def test_what_is_noted_in_a_claim_may_break_a_later_rule() -> None:
    seen = fleet(node("a", fast_mib=100), profile("m", mib=40), task("m"))
    running = run(seen, "m")
    terms = json.loads(running.terms)
    terms["memory"] |= {"weights": "1Gi", "workspace": "1Gi", "budget": "1Gi"}

    again = fleet(node("a", fast_mib=100), profile("m", mib=40))
    feed(again, replace(running, terms=json.dumps(terms)), task("small", of="m"))

    assert places(again, "small") == ["a/cpu0"]


def test_of_claims_without_a_task_no_names_are_told_elsewhere() -> None:
    secret = claim("secret", "gone", namespace="theirs", place=A0)
    seen = fleet(node("a"), profile("m"), secret, task("m"))

    _, reason, message = said(seen, "m")
    assert reason == "Pending"
    assert message.endswith("runs 1 claim without a MemTask, of another namespace")

    feed(seen, claim("stray", "gone", place=A0))
    feed(seen, task("m", generation=2, period_ms=200))
    assert said(seen, "m")[2].endswith(
        "runs claims without a MemTask (stray); delete their pods, "
        "and 1 claim without a MemTask, of another namespace"
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_many_tasks_with_periods_that_lie_far_apart_take_little_memory() -> None:
    """A tenant chooses them: one of 16 h, one of 1 ms, and more that wait than are few."""
    day = [task("long", of="m", period_ms=57_600_000), task("short", of="m", period_ms=1)]
    usual = [task(f"t{n}", of="m", period_ms=10_000, number=n) for n in range(8)]
    seen = Fleet(Rules())
    tracemalloc.start()
    try:
        feed(seen, node("a", yields=True), node("b", yields=True), profile("m", mib=32))
        for one in (*day, *usual, task("tiny", of="m", period_ms=0.001)):
            seen.put_task(one)
        settle(seen)
        assert tracemalloc.get_traced_memory()[1] < 100 * MIB
    finally:
        tracemalloc.stop()
    assert {said(seen, one.name)[1] for one in usual} == {"Admitted"}
    assert said(seen, "tiny")[1] == "DeadlineInfeasible"


def test_nothing_is_kept_of_names_that_are_gone() -> None:
    seen = fleet(node("a"), profile("m"))

    def kept() -> dict[str, int]:
        return {name: len(of) for name, of in vars(seen).items() if isinstance(of, dict | set)}

    before = kept()
    for name in ("one", "two", "three"):
        feed(seen, task(name, of="m"), claim(f"of-{name}", name))
        settle(seen)
        seen.drop_claim(ClaimKey("default", f"of-{name}"))
        seen.drop_task(TaskKey("default", name))
        seen.put_claim(claim(f"orphan-of-{name}", name))
        seen.drop_claim(ClaimKey("default", f"orphan-of-{name}"))
        settle(seen)
    assert kept() == before


def test_a_claim_without_its_task_is_forgotten_when_its_allocation_is_taken_away() -> None:
    # Kubernetes' claim controller takes the allocation away first, and deletes the claim then.
    seen = fleet(node("a"), profile("m"), claim("stray", "gone", place=A0), task("m"))

    feed(seen, claim("stray", "gone"))

    assert places(seen, "m") == ["a/cpu0"]


def test_without_a_profile_a_pod_is_measured_alone_then_admitted() -> None:
    seen = fleet(node("a"), node("b"), profile("m"), task("other", of="m"))
    feed(seen, task("new", number=1))
    assert places(seen, "new") == [], "there is no pod that could be measured"
    assert "no pod of the task to be measured" in said_profiled(seen, "new")

    feed(seen, claim("c", "new"), claim("d", "new", number=1))
    assert places(seen, "new") == ["b/cpu0"]
    assert seen.seat_of(ClaimKey("default", "c")).standing == Standing.PROFILING  # type: ignore[union-attr]
    assert seen.seat_of(ClaimKey("default", "d")) is None
    assert seen.verdict(TaskKey("default", "new")).phase == Phase.PROFILING  # type: ignore[union-attr]
    feed(seen, task("late", of="m", number=2))
    assert places(seen, "late") == ["a/cpu0"], "the measured task has its device alone"

    feed(seen, claim("c", "new", place=B0, profiling=True), profile("new"))
    assert said(seen, "new")[:2] == ("True", "Admitted")
    assert len(places(seen, "new")) == 2
    assert places(seen, "new")[0] == "b/cpu0"


def said_profiled(seen: Fleet, name: str) -> str:
    verdict = seen.verdict(TaskKey("default", name))
    assert verdict is not None
    return verdict.profiled.message


def test_no_empty_device_to_measure_on() -> None:
    seen = fleet(node("a"), profile("m"), task("other", of="m"))
    feed(seen, task("new", number=1), claim("c", "new"))

    assert "no device that matches is empty to measure the task alone" in said_profiled(seen, "new")


def test_a_node_that_goes_takes_kept_places_elsewhere_and_says_what_to_do_of_pods() -> None:
    seen = fleet(node("a"), node("b"), profile("m"))
    feed(seen, task("kept", of="m"), task("runs", of="m", number=1), claim("c", "runs", place=A0))
    assert places(seen, "runs") == ["a/cpu0"]

    seen.drop_node("a")
    settle(seen)

    assert places(seen, "kept") == ["b/cpu0"]
    status, reason, message = said(seen, "runs")
    assert (status, reason) == ("False", "NodeGone")
    assert message.endswith("delete the pod to have it placed elsewhere")

    seen.drop_claim(ClaimKey("default", "c"))
    settle(seen)
    assert places(seen, "runs") == ["b/cpu0"]
    assert said(seen, "runs")[0] == "True"


def test_a_failed_device_is_no_place() -> None:
    seen = fleet(node("a", health=Health.FAILED), profile("m"), task("m"))
    assert said(seen, "m")[:2] == ("False", "Pending")

    feed(seen, node("a"))
    assert said(seen, "m")[0] == "True"


def test_a_slower_link_is_proved_again_and_the_condition_names_who_no_longer_holds() -> None:
    seen = fleet(node("a", fast_mib=24), profile("m", mib=64))
    feed(seen, task("old", of="m", period_ms=30), claim("c", "old", place=A0))
    feed(seen, task("new", of="m", period_ms=30, number=1), claim("d", "new", place=A0, number=1))
    assert said(seen, "old")[0] == said(seen, "new")[0] == "True"

    feed(seen, node("a", fast_mib=24, link_mib_s=3000))

    assert said(seen, "old")[0] == "True", "the longer admitted keeps its guarantee"
    status, reason, message = said(seen, "new")
    assert (status, reason) == ("False", "NoLongerHolds")
    assert "delete the pod to have it placed elsewhere" in message

    feed(seen, node("a", fast_mib=24))
    assert said(seen, "new")[0] == "True"


def test_what_no_longer_holds_is_demoted_where_the_others_still_hold() -> None:
    seen = fleet(node("a"), profile("m", compute_ms=30), profile("n", compute_ms=30))
    feed(seen, task("old", of="m"), claim("c", "old", place=A0))
    feed(seen, task("new", of="n", number=1), claim("d", "new", place=A0, number=1))

    feed(seen, profile("m", compute_ms=60), profile("n", compute_ms=39))
    assert said(seen, "old")[0] == said(seen, "new")[0] == "True"

    feed(seen, profile("m", compute_ms=60.5))
    seat = seen.seat_of(ClaimKey("default", "d"))
    assert seat is not None
    assert seat.standing in {Standing.DEMOTED, Standing.PLANNED}
    feed(seen, profile("m", compute_ms=61.5))
    seat = seen.seat_of(ClaimKey("default", "d"))
    assert seat is not None
    assert seat.standing == Standing.LOST, "even its section would make the other late"


def test_a_changed_period_is_granted_where_it_holds_else_the_old_one_stays() -> None:
    seen = fleet(node("a"), profile("m", compute_ms=40))
    feed(seen, task("one", of="m"), task("two", of="m", number=1))

    feed(seen, task("two", of="m", number=1, period_ms=90, generation=2))
    assert said(seen, "two")[:2] == ("True", "Admitted")
    assert granted_ms(seen, "two") == (90, 2)

    feed(seen, task("two", of="m", number=1, period_ms=50, generation=3))
    status, reason, message = said(seen, "two")
    assert (status, reason) == ("True", "ChangeRefused")
    assert message.startswith("runs on as it was admitted, because the changed spec does not hold")
    assert granted_ms(seen, "two") == (90, 2)

    seen.drop_task(TaskKey("default", "one"))
    settle(seen)
    assert said(seen, "two")[:2] == ("True", "Admitted")
    assert granted_ms(seen, "two") == (50, 3)


def test_whoever_asks_for_less_makes_room_for_those_who_wait() -> None:
    seen = fleet(node("a"), profile("m", compute_ms=5))
    feed(seen, task("one", of="m", period_ms=10), task("two", of="m", period_ms=20, number=1))
    feed(seen, task("three", of="m", period_ms=12, number=2))
    assert said(seen, "three")[1] == "DeadlineInfeasible"

    feed(seen, task("one", of="m", period_ms=100, generation=2))

    assert places(seen, "three") == ["a/cpu0"]


def test_a_profile_of_more_extents_than_a_plan_can_name_is_refused() -> None:
    seen = fleet(node("a"), profile("m", mib=2**39), task("m", budget_mib=2**40))

    _, reason, message = said(seen, "m")
    assert reason == "InvalidSpec"
    assert "MemProfile/m: spec.layers have 512Pi of weights" in message
    assert "at most 32768 extents of 1Mi" in message


def test_a_budget_below_the_measure_is_refused_and_the_old_one_stays() -> None:
    seen = fleet(node("a"), profile("m"), task("m"))

    feed(seen, task("m", budget_mib=16, generation=2))

    _, reason, message = said(seen, "m")
    assert reason == "ChangeRefused"
    assert "write at least 68Mi" in message


def granted_ms(seen: Fleet, name: str) -> tuple[int, int | None]:
    verdict = seen.verdict(TaskKey("default", name))
    assert verdict is not None
    assert verdict.granted is not None
    return round(verdict.granted.realtime.period_s * 1000), verdict.granted_generation


def test_a_refused_change_is_still_refused_after_a_restart() -> None:
    admitted = task("two", of="m", number=1, period_ms=90)
    status = MemTaskStatus(
        node="a",
        device="cpu0",
        granted=Granted(
            generation=2,
            realtime=admitted.spec.realtime,
            memory=admitted.spec.memory,
            swap=admitted.spec.swap,
        ),
    )
    changed = task("two", of="m", number=1, period_ms=50, generation=3, status=status)
    seen = fleet(
        *(node("a"), profile("m", compute_ms=40), task("one", of="m"), changed),
        *(claim("c", "one", place=A0), claim("d", "two", place=A0, number=1)),
    )

    assert said(seen, "two")[:2] == ("True", "ChangeRefused")
    assert granted_ms(seen, "two") == (90, 2)


def test_a_place_that_was_kept_is_kept_over_a_restart() -> None:
    status = MemTaskStatus(
        node="b",
        device="cpu0",
        conditions=(
            Condition(
                type=ConditionType.ADMITTED,
                status=ConditionStatus.TRUE,
                reason="Admitted",
                last_transition_time=datetime(2026, 11, 21, tzinfo=UTC),
            ),
        ),
    )
    seen = fleet(
        *(node("a"), node("b"), profile("m", compute_ms=60)),
        *(task("waits", of="m", number=0), task("had", of="m", number=9, status=status)),
        task("also", of="m", number=1),
    )

    assert places(seen, "had") == ["b/cpu0"]
    assert seen.waiting() == [TaskKey("default", "also")]


def test_a_task_that_is_being_deleted_waits_for_its_pods_and_gets_no_new_ones() -> None:
    seen = fleet(node("a"), profile("m"), task("m"), claim("c", "m", place=A0))

    feed(seen, task("m", leaving=True), claim("d", "m"))

    assert said(seen, "m") == (
        "False",
        "BeingDeleted",
        "is being deleted; waits until its pods have ended: pod-c",
    )
    assert seen.seat_of(ClaimKey("default", "d")) is None
    seen.drop_claim(ClaimKey("default", "c"))
    settle(seen)
    assert places(seen, "m") == []


def test_a_quota_of_fast_memory_names_what_is_missing_and_spare_memory_is_not_given() -> None:
    seen = fleet(node("a"), profile("m", mib=64, compute_ms=5), quota("q", fast_mib=16))
    feed(seen, task("one", of="m"))
    assert said(seen, "one")[0] == "True"
    seat = seen.verdict(TaskKey("default", "one")).seats[0]  # type: ignore[union-attr]
    assert seat.plan is not None
    assert len(seat.plan.resident_extents) < 64

    feed(seen, task("two", of="m", number=1, policy=SwapPolicy.RESIDENT))
    _, reason, message = said(seen, "two")
    assert reason == "QuotaExceeded"
    assert "MemQuota/q of namespace default allows 16 MiB of fast memory" in message
    assert "are missing; raise the quota or remove a task" in message

    feed(seen, quota("q", fast_mib=256))
    assert said(seen, "two")[0] == "True"


def test_a_quota_counts_over_all_nodes_and_each_namespace_by_itself() -> None:
    limit = quota("q", tiers=(TierQuota(tier=Tier.DRAM, capacity_bytes=100 * 2**20),))
    seen = fleet(node("a"), node("b"), profile("m"), profile("m", namespace="other"), limit)
    feed(seen, task("one", of="m"), task("two", of="m", number=1))
    feed(seen, task("three", of="m", namespace="other", number=2))

    assert said(seen, "one")[0] == "True"
    assert "allows 100 MiB in the tier dram and the tasks need 128 MiB" in said(seen, "two")[2]
    assert said(seen, "three", "other")[0] == "True"


def test_what_one_node_gives_back_of_a_quota_is_room_on_another() -> None:
    limit = quota("q", tiers=(TierQuota(tier=Tier.DRAM, capacity_bytes=100 * 2**20),))
    seen = fleet(node("a", product="X"), node("b", product="Y"), limit)
    feed(seen, profile("m", product="X"), profile("n", product="Y"))
    feed(seen, task("one", of="m", model="X"), task("two", of="n", model="Y", number=1))
    assert said(seen, "two")[1] == "QuotaExceeded"

    seen.drop_task(TaskKey("default", "one"))
    settle(seen)

    assert places(seen, "two") == ["b/cpu0"]
    seen.drop_task(TaskKey("default", "two"))
    feed(seen, task("alike", of="n", model="Y", number=2))
    assert places(seen, "alike") == ["b/cpu0"]


def test_equal_weights_count_once_on_a_device() -> None:
    limit = quota("q", tiers=(TierQuota(tier=Tier.DRAM, capacity_bytes=100 * 2**20),))
    seen = fleet(node("a"), profile("m", digest="0" * 64), limit)
    feed(seen, task("one", of="m"), task("two", of="m", number=1))

    assert said(seen, "two")[0] == "True"


def test_a_quota_of_link_time() -> None:
    seen = fleet(
        node("a", fast_mib=16, link_mib_s=1000),
        *(profile("m", mib=64, compute_ms=5), quota("q", link_percent=50)),
        *(task("one", of="m", period_ms=200), task("two", of="m", period_ms=200, number=1)),
    )

    assert said(seen, "one")[0] == "True"
    _, reason, message = said(seen, "two")
    assert reason == "QuotaExceeded"
    assert "allows 50 % of a link's time" in message


def test_a_lowered_quota_stops_growth_only() -> None:
    seen = fleet(node("a"), profile("m"), task("one", of="m"), claim("c", "one", place=A0))
    feed(seen, profile("m", namespace="other"))

    feed(seen, quota("q", fast_mib=1))
    assert said(seen, "one")[0] == "True"
    feed(seen, task("two", of="m", namespace="other", number=1))
    assert said(seen, "two", "other")[0] == "True"
    feed(seen, task("three", of="m", number=2))
    assert said(seen, "three")[1] == "QuotaExceeded"


def test_devices_of_a_node_share_its_tiers() -> None:
    seen = fleet(node("a", devices=2, dram_mib=100), profile("m", mib=64))
    feed(seen, task("one", of="m"), task("two", of="m", number=1))

    assert said(seen, "one")[0] == "True"
    assert said(seen, "two")[1] == "TierInsufficient"


def test_best_effort_has_a_place_without_a_promise() -> None:
    seen = fleet(node("a"), profile("m"), task("m", criticality=Criticality.BEST_EFFORT))

    assert "without a guarantee" in said(seen, "m")[2]


def test_plans_are_made_a_few_at_a_time() -> None:
    few = EXACT.__class__(by_kind=EXACT.by_kind, work_per_settle=2 * WHOLE_DEVICE, few_waiting=5)
    seen = fleet(node("a"), profile("m"), rules=few)
    for number in range(5):
        seen.put_task(task(f"t{number}", of="m", number=number))

    first = seen.settle()
    assert first.more
    assert len(seen.waiting()) == 3
    settle(seen)
    assert seen.waiting() == []


def test_usage_that_a_node_reports_moves_nobody() -> None:
    seen = fleet(node("a"), profile("m"), task("m"))
    reported = node("a")
    used = reported.status.devices[0].model_copy(update={"used_bytes": 2**20})
    status = reported.status.model_copy(update={"devices": (used,)})

    seen.put_node(reported.model_copy(update={"status": status}))

    assert seen.settle().changed == frozenset()


def test_many_who_wait_are_put_next_to_each_other_in_few_words() -> None:
    crowd = EXACT.__class__(by_kind=EXACT.by_kind, work_per_settle=WHOLE_DEVICE + 2, few_waiting=0)
    seen = fleet(node("a"), profile("m"), rules=crowd)
    keys = [TaskKey("default", f"t{number}") for number in range(5)]
    for number, key in enumerate(keys):
        seen.put_task(task(key.name, of="m", number=number))

    first = seen.settle()
    assert first.changed == set(keys[:2]), "who is not tried yet has nothing to say"
    assert first.untried == set(keys[2:])
    assert first.more
    second = seen.settle()
    assert second.changed == set(keys[2:4]), "nothing new is to be said of the first"
    settle(seen)

    assert {said(seen, key.name)[0] for key in keys} == {"True"}


def test_tasks_that_are_alike_are_refused_alike_each_by_its_own_name() -> None:
    seen = fleet(node("a"), profile("m", mib=600, compute_ms=90), task("one", of="m"))
    feed(seen, task("two", of="m", number=1), task("twofold", of="m", number=2))

    _, reason, two = said(seen, "two")
    _, again, twofold = said(seen, "twofold")
    assert reason == again
    assert two.replace("default/two", "default/twofold") == twofold


def test_a_pod_that_no_node_could_take_leaves_no_refusal_to_the_next_one() -> None:
    seen = fleet(node("a"), profile("m"), task("one", of="m"), Worker("a"))
    made = run(seen, "one")
    # kube-scheduler gives it back from the only node, and then the pod is deleted.
    feed(seen, replace(made, place=None, barred=("a",), returned=("a",)))
    assert said(seen, "one")[1] == "NotSchedulable"

    seen.drop_claim(made.key)
    settle(seen)

    assert said(seen, "one")[0] == "True", "a place is kept for the next pod"


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "to be measured"])
def test_a_place_that_may_be_given_back_again_is_no_news(*, measured: bool) -> None:
    """Else each try would be told twice: that it has a place, and that it has none."""
    known = [profile("m")] if measured else []
    seen = fleet(node("a"), node("b"), *known, task("one", of="m"))
    made = run(seen, "one")
    first = made.place
    assert first is not None
    back: dict[str, Any] = {
        "returned": (first.node,),
        "times_returned": 1,
        "unscheduled": "too many ports",
    }
    gone: dict[str, Any] = {
        "place": None,
        "held": None,
        "profiling": False,
        "order": None,
        "terms": "",
    }
    feed(seen, replace(made, barred=(first.node,), **back, **gone))
    told = said(seen, "one")
    profiled = seen.verdict(TaskKey("default", "one"))

    waiting = seen.claims_of(TaskKey("default", "one"))[0]
    feed(seen, allocated(seen, waiting))
    [place] = places(seen, "one")
    assert place != str(first)
    assert said(seen, "one") == told
    assert told == (
        "False",
        "NotSchedulable",
        f'node {first.node}: kube-scheduler found that the pod does not fit there: "too many '
        'ports"; it is tried again, ever more seldom',
    )
    again = seen.verdict(TaskKey("default", "one"))
    assert profiled is not None
    assert again is not None
    assert again.profiled == profiled.profiled

    feed(seen, replace(seen.claims_of(TaskKey("default", "one"))[0], returned=(), barred=()))
    assert said(seen, "one")[1] == ("Admitted" if measured else "Pending")
