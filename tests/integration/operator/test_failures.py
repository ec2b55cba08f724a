"""Operators that die, stop, or meet each other: nothing is admitted twice, nobody is forgotten."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.operator.proxy import Write, proxied
from tests.integration.operator.running import Nursery, Operator, User, memory_in, placed, until
from tests.unit.placement.fleets import node, profile, task

from tierline_api.objects.optin import NODE_LABEL
from tierline_api.objects.swap import SwapPolicy

pytestmark = pytest.mark.slow
NAMES = ("a", "b", "c")


@pytest.fixture
def operators(user: User, nursery: Nursery, tmp_path: Path) -> Iterator[list[Operator]]:
    """Operators that a test starts; at the end one cleans up what the test leaves."""
    started: list[Operator] = []
    with ExitStack() as stack:
        yield started
        for one in started:
            one.stop()
        cleaner = Operator(user.plane, nursery, tmp_path, "cleaner")
        stack.callback(cleaner.stop)
        cleaner.start()
        for name in NAMES:
            user.api.delete(user.task(name))
            user.api.delete(user.named_pod(name), gracePeriodSeconds=0)
        for name in NAMES:
            user.api.wait_gone(user.task(name))


def two_of_three_fit(user: User) -> None:
    """Two devices with room for one pod each, and three pods."""
    user.node(node("node-a"))
    user.node(node("node-b"))
    user.apply(profile("m", compute_ms=50))
    for name in NAMES:
        user.apply(task(name, of="m"))
        user.pod(name, name)


def on_devices(user: User) -> Counter[tuple[str, str]]:
    """How many claims are allocated on each device."""
    places = [placed(claim) for claim in user.claims()]
    return Counter(place for place in places if place is not None)


def settled(user: User) -> bool:
    """Whether two pods run, and the third knows why it waits."""
    found = [user.api.get(user.task(name)) for name in NAMES]
    open_gates = [
        name
        for name in NAMES
        if not user.api.get(user.named_pod(name))["spec"].get("schedulingGates")
    ]
    reasons = Counter((f.get("status") or {}).get("reason") for f in found)
    return len(open_gates) == 2 and reasons == {"Admitted": 2, "DeadlineInfeasible": 1}


@dataclass
class Fate:
    """When a life ends: at a write that is lost, or that loses its answer."""

    operator: Operator
    fatal: int
    lost: bool
    dead: threading.Event

    def __call__(self, write: Write) -> None:
        """Kill the operator if this is its write."""
        asked = write.status == 0
        if write.number > self.fatal or (write.number == self.fatal and asked == self.lost):
            self.operator.kill()
            self.dead.set()
            raise ConnectionAbortedError("the operator is dead")


def test_an_operator_killed_at_every_write(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    """Life n dies in its n-th write: before it is done, or done and never answered."""
    two_of_three_fit(user)
    for life in range(1, 13):
        dead = threading.Event()
        with proxied(user.plane, tmp_path, lambda _: None) as proxy:
            operator = Operator(
                user.plane, nursery, tmp_path, "mortal", kubeconfig=proxy.kubeconfig
            )
            proxy.on_write = Fate(operator, life, lost=life % 2 == 0, dead=dead)
            operators.append(operator.start())
            until(
                "the operator dies, or has nothing to write",
                lambda dead=dead: dead.is_set() or settled(user),  # type: ignore[misc]
            )
            operator.kill()
        assert all(count == 1 for count in on_devices(user).values())
    operators.append(Operator(user.plane, nursery, tmp_path, "mortal").start())
    until("two pods run and the third knows why it waits", lambda: settled(user))
    assert on_devices(user) == {("node-a", "cpu0"): 1, ("node-b", "cpu0"): 1}
    assert (tmp_path / "mortal.log").read_text().count("leads, term") > 5


def test_of_two_operators_one_acts_and_the_other_takes_over(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    first = Operator(user.plane, nursery, tmp_path, "first").start()
    operators.append(first)
    until("the first leads", first.leads)
    second = Operator(user.plane, nursery, tmp_path, "second").start()
    operators.append(second)
    user.apply(task("a", of="m"))
    user.pod("a", "a")
    user.wait_placed("a")
    until("the second waits", lambda: "waits: first leads" in second.log.read_text())
    assert not second.leads()

    first.kill()
    user.apply(task("b", of="m"))
    user.pod("b", "b")
    user.wait_placed("b")
    assert second.leads()
    assert "fenced against the former leader" in second.log.read_text()

    third = Operator(user.plane, nursery, tmp_path, "third").start()
    operators.append(third)
    until("the third waits", lambda: "waits: second leads" in third.log.read_text())
    second.stop()
    until("the third leads at once, because the second gave the Lease up", third.leads)
    user.apply(task("c", of="m"))
    user.pod("c", "c")
    user.wait_placed("c")
    assert "fenced" not in third.log.read_text()
    allocated = sum(one.log.read_text().count("allocated") for one in (first, second, third))
    assert allocated == 3


def test_a_late_write_of_a_former_leader_is_refused(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    """The first leader's allocation is held on its way until the second has given the room away."""
    user.node(node("node-a"))
    user.apply(profile("m", compute_ms=50))
    held, go, answered = threading.Event(), threading.Event(), threading.Event()
    statuses: list[int] = []

    def hold(write: Write) -> None:
        if write.allocates and write.status:
            statuses.append(write.status)
            answered.set()
        elif write.allocates and not held.is_set():
            held.set()
            go.wait(300)

    with proxied(user.plane, tmp_path, hold) as proxy:
        first = Operator(
            user.plane, nursery, tmp_path, "first", kubeconfig=proxy.kubeconfig
        ).start()
        operators.append(first)
        until("the first leads", first.leads)
        user.apply(task("a", of="m"))
        user.pod("a", "a")
        until("the allocation is on its way", held.is_set)
        first.pause()
        # The room for `a` is given away: its task goes, though its claim and its pod stay.
        user.api.delete(user.task("a"))
        user.apply(task("b", of="m"))
        user.pod("b", "b")
        second = Operator(user.plane, nursery, tmp_path, "second").start()
        operators.append(second)
        assert user.wait_placed("b") == ("node-a", "cpu0")

        go.set()
        until("the server has answered", answered.is_set)
        first.resume()
        first.wait()

    assert statuses == [409]
    assert on_devices(user) == {("node-a", "cpu0"): 1}
    claim = user.claim_of("a")
    assert claim is not None
    assert placed(claim) is None


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "carried-out"])
def test_an_allocation_without_an_answer_to_a_node_that_goes(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path, *, arrives: bool
) -> None:
    """It is decided again where it is not there; where it is, the claim is the truth."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    under_way, gone, told = threading.Event(), threading.Event(), threading.Event()

    def unanswered(write: Write) -> None:
        if not write.allocates or bool(write.status) != arrives:
            return
        claim = user.claim_of("a")
        assert claim is not None
        if claim["metadata"]["labels"].get(NODE_LABEL) == "node-a":
            under_way.set()
            gone.wait(300)
            raise ConnectionAbortedError("the answer is lost")

    def passed_on(events: bytes) -> None:
        if b'"DELETED"' in events and b'"MemNode"' in events:
            told.set()

    with proxied(user.plane, tmp_path, unanswered) as proxy:
        proxy.on_events = passed_on
        operator = Operator(user.plane, nursery, tmp_path, "one", kubeconfig=proxy.kubeconfig)
        operators.append(operator.start())
        user.apply(task("a", of="m"))
        user.pod("a", "a")
        until("the allocation is under way", under_way.is_set)
        user.api.delete(user.node(node("node-a")))
        user.node(node("node-b"))
        until("the operator is told that the node is gone", told.is_set)
        gone.set()

        place = user.wait_placed("a")
        user.wait_task("a", "NodeGone" if arrives else "Admitted")
        operator.stop()

    assert place[0] == ("node-a" if arrives else "node-b")
    # Nobody is told to delete a pod that gets its place.
    assert ("NodeGone" in dict(user.events("a"))) == arrives


def test_what_came_while_no_operator_was_there(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    first = Operator(user.plane, nursery, tmp_path, "first").start()
    operators.append(first)
    until("it leads", first.leads)
    first.stop()

    two_of_three_fit(user)
    user.api.delete(user.named_pod("c"), gracePeriodSeconds=0)
    operators.append(Operator(user.plane, nursery, tmp_path, "second").start())

    assert {user.wait_placed("a"), user.wait_placed("b")} == {
        ("node-a", "cpu0"),
        ("node-b", "cpu0"),
    }


def test_a_restart_changes_no_plan_of_a_running_pod(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    """The next leader knows from the claims what is held, and plans the newcomer in addition."""
    first = Operator(user.plane, nursery, tmp_path, "first").start()
    operators.append(first)
    user.node(node("node-a", fast_mib=100))
    user.apply(profile("m"))
    running = NAMES[:2]
    for name in running:
        user.apply(task(name, of="m"))
        user.pod(name, name)
    for name in running:
        user.wait_placed(name)
        user.wait_task(name, "Admitted")
    first.stop()
    before = {c["metadata"]["name"]: memory_in(c) for c in user.claims()}

    user.node(node("node-a", fast_mib=100, link_mib_s=9000))
    second = Operator(user.plane, nursery, tmp_path, "second").start()
    operators.append(second)
    until("the second leads", second.leads)
    user.apply(task("a", of="m", period_ms=99))
    user.api.wait(user.task("a"), lambda t: t["status"]["granted"]["realtime"]["period"] == "99ms")
    user.apply(task("c", of="m", policy=SwapPolicy.RESIDENT))
    user.wait_task("c", "MemoryInsufficient")

    assert {c["metadata"]["name"]: memory_in(c) for c in user.claims()} == before
    assert not [name for name in running if "NoLongerHolds" in dict(user.events(name))]


def test_a_task_that_is_never_measured_lets_the_next_one_go_also_after_a_restart(
    user: User, operators: list[Operator], nursery: Nursery, tmp_path: Path
) -> None:
    def start(name: str) -> Operator:
        operators.append(
            Operator(user.plane, nursery, tmp_path, name, {"MEASURING_LIMIT_S": "1"}).start()
        )
        return operators[-1]

    first = start("first")
    user.node(node("node-a"))
    for name in ("a", "b"):
        user.apply(task(name))
        user.pod(name, name)
        user.wait_placed(name)
    found = user.wait_task("a", "ProfilingFailed", "Profiled")
    assert found["status"]["phase"] == "Refused"
    first.stop()
    start("second")
    user.apply(profile("b"))
    user.wait_task("b", "Admitted")

    found = user.wait_task("a", "ProfilingFailed", "Profiled")
    claim = user.claim_of("a")
    assert claim is not None
    assert claim["metadata"]["annotations"]["tierline.io/standing"] == "Unmeasured"
