"""A pod that runs holds its place whatever became of its claim; a claim is nothing by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.operator.test_objects import OWNER, allocated, body
from tests.unit.placement.fleets import EXACT, feed, node, places, profile, said, settle, task

from tierline_api.objects.swap import SwapPolicy
from tierline_operator.cluster.resources import CLAIM, POD
from tierline_operator.cluster.state import View
from tierline_operator.controller.status import without_claim
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
M, OTHER = TaskKey("default", "m"), TaskKey("default", "other")
NOT_OURS: dict[str, Any] = {"ownerReferences": None}


def seen(devices: int = 1) -> View:
    """A view of two nodes, and of tasks of which each fits a device alone."""
    view = View(Fleet(EXACT))
    nodes = (node(name, fast_mib=100, devices=devices) for name in ("a", "b"))
    feed(view.fleet, *nodes, profile("m"), task("m", policy=SwapPolicy.RESIDENT))
    return view


def bound(version: int = 2, on: str = "a", **metadata: Any) -> dict[str, Any]:
    """The pod of claim c, where it runs."""
    labels = {"tierline.io/task": "m"}
    asked = [{"name": "tierline", "resourceClaimTemplateName": "m"}]
    named = [{"name": "tierline", "resourceClaimName": "c"}]
    return body(
        "p",
        version,
        metadata={"uid": "u", "labels": labels, "annotations": labels, **metadata},
        spec={"nodeName": on, "resourceClaims": asked},
        status={"phase": "Running", "resourceClaimStatuses": named},
    )


def claim(version: int = 1, **metadata: Any) -> dict[str, Any]:
    made = allocated("c", version)
    return {**made, "metadata": {**made["metadata"], **metadata}}


def emptied(version: int, **metadata: Any) -> dict[str, Any]:
    return {**claim(version, **metadata), "status": {}}


def ask(view: View, name: str) -> None:
    """Another task, as large."""
    feed(view.fleet, task(name, of="m", policy=SwapPolicy.RESIDENT, number=9))


def running() -> View:
    view = seen()
    view.take(CLAIM, claim())
    view.take(POD, bound())
    settle(view.fleet)
    assert places(view.fleet, "m") == ["a/cpu0"]
    return view


def test_a_pod_whose_claim_is_deleted_under_it_keeps_its_device_to_the_end() -> None:
    view = running()
    assert view.take(CLAIM, claim(3), gone=True) == {M}
    feed(view.fleet, task("m", replicas=0, policy=SwapPolicy.RESIDENT))
    view.fleet.drop_node("b")
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == []
    assert said(view.fleet, "other")[2].startswith(
        "device a/cpu0 runs pods whose claims are lost (p); delete them"
    )
    assert view.take(POD, bound(9), gone=True) == {M}
    settle(view.fleet)
    assert places(view.fleet, "other") == ["a/cpu0"]


def test_what_lasts_is_told_and_what_passes_is_not() -> None:
    view = running()
    view.take(CLAIM, claim(3), gone=True)
    assert view.turn(START, 1.0) == START + timedelta(seconds=10)
    assert view.unclaimed_of(M) == []
    view.turn(START + timedelta(seconds=10), 1.0)
    assert M in view.late
    [pod] = view.unclaimed_of(M)
    assert without_claim([pod]) == (
        "pod p runs on a without the claim that it started with, which was deleted or changed "
        "under it; its place is kept from others until it has ended; delete it: the next one gets "
        "both"
    )
    view.take(POD, bound(9, deletionTimestamp="2026-11-21T13:00:00Z"))
    assert view.unclaimed_of(M) == []


@pytest.mark.parametrize("end", [{"phase": "Succeeded"}, {"phase": "Failed"}])
def test_a_pod_that_has_ended_holds_nothing(end: dict[str, str]) -> None:
    view = running()
    view.take(CLAIM, claim(3), gone=True)
    view.take(POD, {**bound(4), "status": end})
    view.fleet.drop_node("b")
    feed(view.fleet, task("m", replicas=0))
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == ["a/cpu0"]


def test_after_a_restart_all_devices_of_its_node_are_kept_from_others() -> None:
    view = seen(devices=2)
    feed(view.fleet, task("m", replicas=0))
    view.take(POD, bound())
    for name in ("one", "two", "three"):
        ask(view, name)
    settle(view.fleet)
    found = [place for name in ("one", "two", "three") for place in places(view.fleet, name)]
    assert sorted(found) == ["b/cpu0", "b/cpu1"]


def test_a_claim_of_a_pod_that_runs_is_placed_only_where_it_runs() -> None:
    view = seen()
    view.take(CLAIM, emptied(1))
    view.take(POD, bound(on="b", name="p"))
    settle(view.fleet)
    assert places(view.fleet, "m") == ["b/cpu0"]


def test_a_claim_that_is_emptied_under_its_pod_is_placed_there_again_and_by_its_own_task() -> None:
    view = running()
    feed(view.fleet, task("other", of="m", policy=SwapPolicy.RESIDENT, replicas=0))
    touched = view.take(CLAIM, emptied(3, labels={"tierline.io/task": "other"}))
    assert touched >= {M, OTHER}
    settle(view.fleet)
    assert places(view.fleet, "m") == ["a/cpu0"]
    assert places(view.fleet, "other") == []
    assert [known.meta.name for known in view.claims_of(M)] == ["c"]


def test_a_claim_that_is_made_again_has_room_that_others_were_kept_from() -> None:
    view = running()
    view.take(CLAIM, claim(3), gone=True)
    feed(view.fleet, task("m", replicas=0, policy=SwapPolicy.RESIDENT))
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == ["b/cpu0"]
    again = emptied(4)
    again["metadata"]["name"] = "c2"
    view.take(CLAIM, again)
    settle(view.fleet)
    assert places(view.fleet, "m") == ["a/cpu0"]


@pytest.mark.parametrize(("made_at", "told"), [("12:00:30", True), ("11:59:59", False)])
def test_a_claim_that_came_after_its_pod_was_bound_counts_and_is_told(
    made_at: str, told: bool
) -> None:
    view = seen()
    feed(view.fleet, task("m", replicas=0, policy=SwapPolicy.RESIDENT))
    again = claim(1, creationTimestamp=f"2026-11-21T{made_at}Z")
    pod = bound()
    since = "2026-11-21T12:00:00Z"
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    ]
    view.take(CLAIM, again)
    view.take(POD, pod)
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "m") == ["a/cpu0"]
    assert places(view.fleet, "other") == ["b/cpu0"]
    view.turn(START, 1.0)
    view.turn(START + timedelta(minutes=1), 1.0)
    assert bool(view.unclaimed_of(M)) is told


def test_a_claim_without_an_owner_and_without_a_place_asks_for_none() -> None:
    view = seen()
    feed(view.fleet, task("m", replicas=0))
    view.take(CLAIM, emptied(1, **NOT_OURS))
    settle(view.fleet)
    assert places(view.fleet, "m") == []


def test_a_place_without_a_pod_is_given_up_after_the_time_that_holds_for_all() -> None:
    view = seen()
    view.take(CLAIM, claim(1, **NOT_OURS))
    view.turn(START, 1.0)
    assert view.nobodys_of(M) == []
    view.turn(START + timedelta(seconds=EXACT.keep_free_s), 1.0)
    assert [known.meta.name for known in view.nobodys_of(M)] == ["c"]
    assert M in view.late


def test_a_claim_without_an_owner_is_that_of_the_pod_that_names_it() -> None:
    view = running()
    view.take(CLAIM, claim(3, **NOT_OURS))
    view.turn(START, 1.0)
    view.turn(START + timedelta(seconds=EXACT.keep_free_s), 1.0)
    assert view.nobodys_of(M) == []
    assert view.unclaimed_of(M) == []
    view.take(POD, bound(9), gone=True)
    view.turn(START + timedelta(hours=1), 1.0)
    view.turn(START + timedelta(hours=2), 1.0)
    assert [known.meta.name for known in view.nobodys_of(M)] == ["c"]


def test_a_claim_that_loses_its_owner_and_goes_leaves_its_pod_without_one() -> None:
    view = running()
    view.take(CLAIM, claim(3, **NOT_OURS))
    view.take(CLAIM, claim(4, **NOT_OURS), gone=True)
    view.take(POD, bound(5))
    view.turn(START, 1.0)
    view.turn(START + timedelta(minutes=1), 1.0)
    assert [pod.meta.name for pod in view.unclaimed_of(M)] == ["p"]


def test_a_claim_that_kubernetes_keeps_for_somebody_is_not_nobodys() -> None:
    view = seen()
    kept = claim(1, **NOT_OURS)
    kept["status"]["reservedFor"] = [{"resource": "pods", "name": "x", "uid": "y"}]
    view.take(CLAIM, kept)
    view.turn(START, 1.0)
    view.turn(START + timedelta(hours=1), 1.0)
    assert view.nobodys_of(M) == []


def test_a_pod_that_never_asked_for_a_claim_is_told_and_keeps_nobody_away() -> None:
    view = seen()
    feed(view.fleet, task("m", replicas=0))
    outside = bound()
    del outside["spec"]["resourceClaims"]
    view.take(POD, outside)
    view.fleet.drop_node("b")
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == ["a/cpu0"]
    view.turn(START, 1.0)
    view.turn(START + timedelta(seconds=10), 1.0)
    assert "made while its admission policies were not in force" in without_claim(
        view.unclaimed_of(M)
    )


@pytest.mark.parametrize("without", ["annotations", "template"])
def test_nobody_keeps_a_node_from_others_by_a_label_or_a_name(without: str) -> None:
    view = seen()
    feed(view.fleet, task("m", replicas=0))
    pod = bound()
    if without == "annotations":
        pod["metadata"]["annotations"] = {}
    else:
        pod["spec"]["resourceClaims"] = [{"name": "tierline", "resourceClaimName": "x"}]
    view.take(POD, pod)
    view.fleet.drop_node("b")
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == ["a/cpu0"]
    view.turn(START, 1.0)
    view.turn(START + timedelta(minutes=1), 1.0)
    assert bool(view.unclaimed_of(M)) is (without == "template")


def test_a_pod_of_the_same_name_that_comes_afterwards_has_nothing_to_do_with_it() -> None:
    view = running()
    view.take(CLAIM, claim(3), gone=True)
    waiting = bound(4, ownerReferences=[OWNER])
    waiting["metadata"]["uid"] = "next"
    waiting["spec"]["nodeName"] = ""
    view.take(POD, waiting)
    view.turn(START, 1.0)
    view.turn(START + timedelta(minutes=1), 1.0)
    assert view.unclaimed_of(M) == []
    view.fleet.drop_node("b")
    feed(view.fleet, task("m", replicas=0))
    ask(view, "other")
    settle(view.fleet)
    assert places(view.fleet, "other") == ["a/cpu0"]
