"""Tasks without a profile on one device: each is measured, and all end with a verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from tests.unit.placement.fleets import (
    allocated,
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

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memnode import Health
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.memtask_status import Phase
from tierline_api.objects.optin import Standing
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.placement.books.seats import Claim, ClaimKey, DeviceKey, TaskKey
from tierline_operator.placement.fleet import Fleet

A0 = DeviceKey("a", "cpu0")
NAMES = ("x", "y", "z")


class Cluster:
    """A fleet, and what a restarted operator would read."""

    def __init__(self, *tasks: MemTask) -> None:
        self.tasks = tasks
        self.claims: dict[str, Claim] = {}
        self.profiles: dict[str, MemProfile] = {}
        self.fleet = fleet(node("a"), *tasks)

    def pod(self, name: str, number: int) -> None:
        """A gated pod of a task; `number` seconds after the start."""
        self.claims[name] = claim(f"c-{name}", name, number=number)
        self.turn()

    def turn(self) -> None:
        """The operator allocates and notes; then it is another one, which has read all that."""
        feed(self.fleet, *self.claims.values(), *self.profiles.values())
        for name, known in self.claims.items():
            if self.fleet.seat_of(known.key) is not None:
                self.claims[name] = allocated(self.fleet, known)
        feed(self.fleet, *self.claims.values())
        again = fleet(
            *(*reversed(self.claims.values()), *self.tasks, *self.profiles.values(), node("a"))
        )
        assert standings(again, self.claims) == standings(self.fleet, self.claims)
        self.fleet = again

    @property
    def measured_now(self) -> list[str]:
        """The pods with a program that runs to be measured."""
        found = standings(self.fleet, self.claims)
        return [name for name, standing in found.items() if standing is Standing.PROFILING]

    def is_measured(self, name: str) -> None:
        """The agent has written a profile."""
        self.profiles[name] = profile(name, mib=16, compute_ms=2)
        self.turn()


def standings(of: Fleet, claims: dict[str, Claim]) -> dict[str, Standing | None]:
    """How each pod stands."""
    seats = {name: of.seat_of(known.key) for name, known in claims.items()}
    return {name: seat.standing if seat else None for name, seat in seats.items()}


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_all_are_measured_one_after_the_other_and_then_planned_together(
    order: tuple[int, ...],
) -> None:
    seen = Cluster(*(task(name, number=order[i]) for i, name in enumerate(NAMES)))
    for number in range(3):
        seen.pod(NAMES[order[number]], number)

    while len(seen.profiles) < 3:
        (now,) = seen.measured_now
        others = [n for n in NAMES if n != now]
        assert all(said(seen.fleet, n)[0] == "False" for n in others), "nothing else has a plan"
        seen.is_measured(now)

    assert standings(seen.fleet, seen.claims) == dict.fromkeys(seen.claims, Standing.PLANNED)
    assert all(said(seen.fleet, name)[:2] == ("True", "Admitted") for name in NAMES)


def test_who_was_measured_says_what_it_waits_for() -> None:
    seen = Cluster(task("x"), task("y", number=1))
    seen.pod("x", 0)
    seen.pod("y", 1)
    seen.is_measured("x")

    assert seen.measured_now == ["y"]
    verdict = seen.fleet.verdict(TaskKey("default", "x"))
    assert verdict is not None
    assert verdict.phase is Phase.PROFILING
    assert verdict.profiled.status.value == "True"
    assert said(seen.fleet, "x")[1:] == (
        "Pending",
        "has been measured on a/cpu0, and is planned there when the other tasks that wait for that "
        "have been measured, too",
    )


def test_a_task_that_has_a_profile_waits_until_the_measuring_is_done() -> None:
    seen = fleet(node("a"), profile("m", mib=16), task("x"), claim("c-x", "x"))
    feed(seen, task("late", of="m", number=1))

    assert said(seen, "late")[1:] == (
        "Pending",
        "device a/cpu0 measures tasks alone, and is open when that is done",
    )
    feed(seen, profile("x", mib=16))
    assert places(seen, "late") == ["a/cpu0"]


@pytest.mark.parametrize(("came_s", "waits"), [(600, True), (601, False)])
def test_who_comes_long_after_the_first_is_not_waited_for(came_s: int, *, waits: bool) -> None:
    seen = Cluster(task("x"), task("late", number=came_s))
    seen.pod("x", 0)
    seen.pod("late", came_s)
    seen.is_measured("x")

    assert said(seen.fleet, "x")[0] == ("False" if waits else "True")
    assert seen.measured_now == (["late"] if waits else [])
    if not waits:
        verdict = seen.fleet.verdict(TaskKey("default", "late"))
        assert verdict is not None
        assert "tasks that are applied together are measured" in verdict.profiled.message


def test_whoever_waits_for_a_task_that_goes_is_planned() -> None:
    seen = Cluster(task("x"), task("y", number=1), task("z", number=2))
    for number, name in enumerate(NAMES):
        seen.pod(name, number)
    seen.is_measured("x")
    for name in ("y", "z"):
        assert said(seen.fleet, "x")[0] == "False"
        seen.fleet.drop_claim(seen.claims.pop(name).key)
        settle(seen.fleet)

    assert said(seen.fleet, "x")[0] == "True"


def test_measuring_that_takes_too_long_is_given_up_when_others_wait() -> None:
    seen = Cluster(task("x"), task("y", number=1), task("z", number=2))
    seen.pod("x", 0)
    seen.claims["x"] = replace(seen.claims["x"], overdue=True)
    seen.turn()
    assert seen.measured_now == ["x"], "nobody waits"

    seen.pod("y", 1)
    assert seen.measured_now == ["y"]
    verdict = seen.fleet.verdict(TaskKey("default", "x"))
    assert verdict is not None
    assert verdict.phase is Phase.REFUSED
    assert verdict.admitted.reason.value == verdict.profiled.reason.value == "ProfilingFailed"
    assert "delete the pod to have it measured again" in verdict.admitted.message

    seen.claims["y"] = replace(seen.claims["y"], overdue=True)
    seen.pod("z", 2)
    seen.is_measured("z")
    assert said(seen.fleet, "z")[0] == "True"
    assert standings(seen.fleet, seen.claims)["y"] is Standing.UNMEASURED


def test_who_was_measured_does_not_wait_for_ever_for_who_is_measured_last() -> None:
    seen = Cluster(task("x"), task("y", number=1))
    seen.pod("x", 0)
    seen.pod("y", 1)
    seen.is_measured("x")
    seen.claims["y"] = replace(seen.claims["y"], overdue=True)
    seen.turn()

    assert said(seen.fleet, "x")[:2] == ("True", "Admitted")
    assert said(seen.fleet, "y")[1] == "ProfilingFailed"


def test_a_profile_that_comes_after_all_is_planned_next_to_the_others() -> None:
    seen = Cluster(task("x"), task("y", number=1))
    seen.pod("x", 0)
    seen.claims["x"] = replace(seen.claims["x"], overdue=True)
    seen.pod("y", 1)
    seen.is_measured("y")
    seen.is_measured("x")

    assert said(seen.fleet, "x")[:2] == ("True", "Admitted")
    assert said(seen.fleet, "y")[:2] == ("True", "Admitted")


def test_a_measured_task_that_cannot_run_does_not_close_the_device() -> None:
    small = task("x", budget_mib=1)
    seen = Cluster(small, task("y", number=1))
    seen.pod("x", 0)
    seen.pod("y", 1)
    for name in ("x", "y"):
        seen.is_measured(name)

    assert said(seen.fleet, "x")[0] == "False"
    assert said(seen.fleet, "y")[:2] == ("True", "Admitted")
    feed(seen.fleet, profile("m", mib=8), task("later", of="m", number=2))
    assert places(seen.fleet, "later") == ["a/cpu0"]


def test_what_is_admitted_is_not_disturbed() -> None:
    seen = fleet(node("a"), profile("m"), task("runs", of="m"), claim("c", "runs", place=A0))
    feed(seen, task("new", number=1), claim("d", "new", number=1))

    assert seen.seat_of(ClaimKey("default", "d")) is None
    assert said(seen, "runs")[0] == "True"


def in_use(*tasks: MemTask, hard: MemTask | None = None) -> Cluster:
    """A device on which `hard` runs by its plan, of 10 ms a job; then the tasks."""
    runs = hard or task("runs")
    seen = Cluster(runs, *tasks)
    seen.profiles["runs"] = profile("runs", mib=8, compute_ms=10)
    seen.pod("runs", 0)
    seen.turn()
    assert standings(seen.fleet, seen.claims)["runs"] is Standing.PLANNED
    return seen


def test_a_task_that_says_how_long_its_jobs_take_is_measured_among_others() -> None:
    seen = in_use(task("new", number=1, limit_ms=90))
    seen.pod("new", 1)

    assert seen.measured_now == ["new"]
    seat = seen.fleet.seat_of(seen.claims["new"].key)
    assert seat is not None
    assert seat.plan is not None
    assert (seat.plan.extent_count, seat.plan.workspace_bytes, seat.plan.job_time_s) == (0, 0, 0.09)
    assert said(seen.fleet, "runs")[0] == "True"
    assert said(seen.fleet, "new") == ("False", "Pending", "is measured before it is admitted")
    verdict = seen.fleet.verdict(TaskKey("default", "new"))
    assert verdict is not None
    assert verdict.profiled.message == "runs together with the tasks of a/cpu0 to be measured"

    seen.is_measured("new")
    assert standings(seen.fleet, seen.claims) == dict.fromkeys(seen.claims, Standing.PLANNED)
    assert said(seen.fleet, "new")[:2] == ("True", "Admitted")


@pytest.mark.parametrize(
    ("limit_ms", "fits"), [(90, True), (90.001, False), (None, False)], ids=str
)
def test_only_a_bound_that_leaves_every_deadline_is_let_in(
    limit_ms: float | None, *, fits: bool
) -> None:
    seen = in_use(task("new", number=1, limit_ms=limit_ms))
    seen.pod("new", 1)

    assert seen.measured_now == (["new"] if fits else [])
    assert said(seen.fleet, "runs")[0] == "True"
    verdict = seen.fleet.verdict(TaskKey("default", "new"))
    assert verdict is not None
    if not fits:
        why = "state spec.realtime.measuringLimit" if limit_ms is None else "0.001 ms"
        assert why in verdict.profiled.message


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "busy"])
def test_no_number_of_other_devices_hides_the_one_with_room_to_measure(*, fails: bool) -> None:
    seen = fleet(node("room"), profile("urgent", compute_ms=1), profile("long", compute_ms=15))
    feed(seen, task("long", of="long", period_ms=20))
    for number in range(9):
        feed(seen, node(f"n{number}", health=Health.FAILED if fails else Health.HEALTHY))
        if not fails:
            feed(seen, task(f"t{number}", of="urgent", period_ms=20, deadline_ms=2, number=number))

    feed(seen, task("new", number=9, limit_ms=4), claim("c-new", "new", number=9))

    assert places(seen, "new") == ["room/cpu0"]


def test_nothing_is_measured_among_others_on_a_gpu() -> None:
    runs = task("runs", of="m", kind=DeviceKind.CUDA)
    seen = fleet(
        node("a", kind=DeviceKind.CUDA),
        profile("m", kind=DeviceKind.CUDA),
        *(runs, task("new", number=1, limit_ms=1, kind=DeviceKind.CUDA)),
    )
    run(seen, "runs")
    feed(seen, claim("d", "new", number=1))

    assert seen.seat_of(ClaimKey("default", "d")) is None
    verdict = seen.verdict(TaskKey("default", "new"))
    assert verdict is not None
    assert "on a GPU a task is measured alone" in verdict.profiled.message


def test_whoever_comes_while_one_is_measured_among_others_is_admitted_next_to_its_limit() -> None:
    seen = in_use(task("new", number=1, limit_ms=50))
    seen.pod("new", 1)
    feed(
        seen.fleet,
        *(profile("m", mib=8, compute_ms=1), profile("n", mib=8, compute_ms=1)),
        *(task("slow", of="m", number=2), task("urgent", of="n", number=3, period_ms=50)),
    )

    assert said(seen.fleet, "slow")[0] == "True"
    assert said(seen.fleet, "urgent")[1] == "DeadlineInfeasible"
    feed(seen.fleet, profile("new", mib=8, compute_ms=1))
    assert said(seen.fleet, "urgent")[0] == "True", "the limit is given back"


def test_one_that_was_measured_and_does_not_hold_takes_nothing_from_others() -> None:
    soft = task("runs", criticality=Criticality.BEST_EFFORT)
    seen = in_use(task("new", number=1, period_ms=20, limit_ms=50), hard=soft)
    seen.pod("new", 1)
    seen.profiles["new"] = profile("new", mib=8, compute_ms=15)
    seen.turn()

    assert standings(seen.fleet, seen.claims) == {
        "runs": Standing.PLANNED,
        "new": Standing.LOST,
    }
    assert "delete the pod to have it placed elsewhere" in said(seen.fleet, "new")[2]


def test_measuring_among_others_is_given_up_where_the_device_became_slower() -> None:
    seen = in_use(task("new", number=1, limit_ms=90))
    seen.pod("new", 1)
    seen.profiles["runs"] = profile("runs", mib=8, compute_ms=20)
    seen.turn()

    assert standings(seen.fleet, seen.claims) == {
        "runs": Standing.PLANNED,
        "new": Standing.UNMEASURED,
    }
    assert said(seen.fleet, "new")[1] == "ProfilingFailed"
    seen.is_measured("new")
    assert said(seen.fleet, "new")[0] == "True", "somebody brought the profile"


def test_a_new_limit_counts_only_where_it_holds() -> None:
    seen = in_use(task("new", number=1, limit_ms=50))
    seen.pod("new", 1)
    for limit_ms, granted_ms in ((95, 50), (80, 80)):
        changed = task("new", number=1, limit_ms=limit_ms, generation=2)
        seen.fleet.put_task(changed)
        settle(seen.fleet)
        verdict = seen.fleet.verdict(TaskKey("default", "new"))
        assert verdict is not None
        assert verdict.granted is not None
        assert verdict.granted.realtime.measuring_limit_s == granted_ms / 1000
        assert seen.measured_now == ["new"]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_in_any_order_everyone_is_measured_and_who_runs_keeps_its_proof(
    order: tuple[int, ...],
) -> None:
    names = ("b", "c", "d")
    seen = in_use(*(task(name, number=1 + order[i], limit_ms=30) for i, name in enumerate(names)))
    for i in order:
        seen.pod(names[i], i)
        assert standings(seen.fleet, seen.claims)["runs"] is Standing.PLANNED
    for i in reversed(order):
        seen.is_measured(names[i])
        assert standings(seen.fleet, seen.claims)["runs"] is Standing.PLANNED

    assert standings(seen.fleet, seen.claims) == dict.fromkeys(seen.claims, Standing.PLANNED)


def test_one_measured_alone_never_runs_where_somebody_holds_a_plan() -> None:
    seen = fleet(node("a"), task("x"), claim("c-x", "x", place=A0, profiling=True))
    assert seen.seat_of(ClaimKey("default", "c-x")).standing is Standing.PROFILING  # type: ignore[union-attr]
    other = fleet(node("b"), profile("runs", mib=8), task("runs"))
    held = run(other, "runs")
    feed(seen, profile("runs", mib=8), task("runs", number=1), replace(held, place=A0))

    assert seen.seat_of(ClaimKey("default", "c-x")).standing is Standing.UNMEASURED  # type: ignore[union-attr]


@pytest.mark.parametrize("yields", [False, True], ids=["to the end", "at layers"])
def test_one_is_measured_among_tasks_that_stream(*, yields: bool) -> None:
    streams = task("runs", policy=SwapPolicy.STREAM)
    new = task("new", number=1, limit_ms=50, policy=SwapPolicy.STREAM)
    seen = fleet(node("a", fast_mib=16, yields=yields), profile("runs", mib=32), streams, new)
    held = run(seen, "runs")
    assert plan_of_pod(seen, held).ring_extents
    measured = run(seen, "new", number=1)

    assert measured.sharing
    assert plan_of_pod(seen, measured).job_time_s == pytest.approx(0.05)
    feed(seen, profile("new", mib=32))
    assert not allocated(seen, measured).profiling
    assert said(seen, "runs")[0] == said(seen, "new")[0] == "True"
