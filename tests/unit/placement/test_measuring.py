"""Tasks without a profile on one device: each is measured alone, and all end with a verdict."""

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
    profile,
    said,
    settle,
    task,
)

from tierline_api.memprofile import MemProfile
from tierline_api.memtask import MemTask
from tierline_api.memtask_status import Phase
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.seats import Claim, ClaimKey, DeviceKey, Standing, TaskKey

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
        """Whose program runs to be measured."""
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


def test_a_profile_that_comes_after_all_is_planned_beside_the_others() -> None:
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
