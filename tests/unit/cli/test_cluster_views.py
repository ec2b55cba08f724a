"""Objects of a cluster as the plugin reads them, also those that another release wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tierline_api.objects.conditions import Reason
from tierline_cli.cluster.views import UNSEEN, event_view, node_view, pod_view, task_view
from tierline_cli.cluster.why_pending import ADVICE


def memtask(status: dict[str, Any] | None = None, **realtime: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": "vit", "namespace": "vision"},
        "spec": {"realtime": {"period": "100ms", **realtime}},
    }
    return made if status is None else {**made, "status": status}


def admitted(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "Admitted", "status": status, "reason": reason, "message": "why"}
    return {"phase": "Pending", "reason": reason, "conditions": [condition]}


def test_a_task_that_nobody_has_looked_at() -> None:
    seen = task_view(memtask())
    assert (seen.phase, seen.reason, seen.waits) == ("Pending", UNSEEN, True)
    assert (seen.period_s, seen.deadline_s, seen.bound_s, seen.jobs) == (0.1, 0.1, None, None)


@pytest.mark.parametrize(
    ("status", "reason", "waits"),
    [
        ("True", "Admitted", False),
        ("True", "ChangeRefused", True),
        ("False", "MemoryInsufficient", True),
        ("False", "SomethingNew", True),
    ],
)
def test_who_waits(status: str, reason: str, waits: bool) -> None:
    seen = task_view(memtask(admitted(status, reason)))
    assert (seen.waits, seen.message) == (waits, "why")


def test_what_cannot_be_read_is_left_out() -> None:
    seen = task_view(
        memtask({"predicted": {"responseTime": "soon"}, "fastMemoryBytes": "many"}, deadline="?")
    )
    assert (seen.deadline_s, seen.bound_s, seen.fast_memory_bytes) == (None, None, None)
    assert node_view({"metadata": {"name": "a"}}).devices == ()
    assert pod_view({"metadata": {"name": "p"}}).task == ""
    assert not pod_view({"metadata": {"name": "p"}}).outside


def at(second: int) -> str:
    return f"2026-11-28T12:00:{second:02}"


def claiming(**status: Any) -> dict[str, Any]:
    """A pod with a claim from a template."""
    claims = [{"name": "tierline", "resourceClaimTemplateName": "m"}]
    spec = {"resourceClaims": claims}
    return {"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("reason", "second", "pod", "holds"),
    [
        ("FailedScheduling", 5, {}, True),
        ("FailedScheduling", 5, {"scheduled": 5}, True),
        ("FailedScheduling", 4, {"scheduled": 5}, False),
        ("FailedMount", 6, {"scheduled": 5}, True),
        ("FailedResourceClaimCreation", 6, {"scheduled": 5}, True),
        ("FailedResourceClaimCreation", 6, {"scheduled": 5, "claimed": True}, False),
    ],
)
def test_what_was_said_before_a_pod_went_on_is_over(
    reason: str, second: int, pod: dict[str, Any], holds: bool
) -> None:
    status: dict[str, Any] = {}
    if "scheduled" in pod:
        when = f"{at(pod['scheduled'])}+00:00"  # as the client writes it
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": when}
        status["conditions"] = [bound]
    if "claimed" in pod:
        status["resourceClaimStatuses"] = [{"name": "tierline", "resourceClaimName": "p-x"}]
    about = {"kind": "Pod", "namespace": "n", "name": "p"}
    event = {"involvedObject": about, "reason": reason, "eventTime": f"{at(second)}.000001Z"}
    assert event_view(event).holds_of(pod_view(claiming(**status))) is holds


@pytest.mark.parametrize(
    ("spec", "reason", "unseen_by"),
    [
        ({}, "", "default-scheduler"),
        ({"schedulerName": "nobody"}, "", "nobody"),
        ({"schedulerName": "nobody"}, "SchedulingGated", "nobody"),
        ({"schedulerName": "nobody"}, "Unschedulable", ""),
        ({"schedulingGates": [{"name": "a"}]}, "SchedulingGated", ""),
        ({"nodeName": "a"}, "", ""),
    ],
)
def test_of_which_pods_no_scheduler_has_spoken(
    spec: dict[str, Any], reason: str, unseen_by: str
) -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": reason}
    pod = {"metadata": {"name": "p"}, "spec": spec}
    pod["status"] = {"conditions": [said]} if reason else {}
    assert pod_view(pod).unseen_by == unseen_by


def test_there_is_advice_for_each_reason_to_wait() -> None:
    never = {
        *(Reason.PROFILE_FOUND, Reason.ADMITTED, Reason.RUNNING, Reason.STARTING),
        *(Reason.NOT_RUNNING, Reason.NO_MISSES, Reason.DEADLINES_MISSED, Reason.NO_JOBS),
        *(Reason.ALL_WELL, Reason.LINK_DEGRADED, Reason.TIER_FAILED, Reason.AGENT_STARTING),
        *(Reason.REGISTERED, Reason.KUBELET_NOT_REGISTERED, Reason.AGENT_SILENT),
        Reason.AGENT_CRASHING,
        *(Reason.REPLICA_FAILURE, Reason.STALLED, Reason.NO_REPLICAS),
        *(Reason.DEVICE_FAILED, Reason.NOT_AS_CONFIGURED, Reason.OVERRUNS_NOT_HELD),
    }
    assert set(ADVICE) == {UNSEEN, *(set(Reason) - never)}


TEMPLATED = {"name": "tierline", "resourceClaimTemplateName": "m"}


@pytest.mark.parametrize(
    ("outside", "spec", "phase"),
    [
        (True, {}, "Running"),
        (True, {"resourceClaims": [{"name": "gpu"}]}, "Pending"),
        (False, {"resourceClaims": [TEMPLATED]}, "Running"),
        (False, {"schedulingGates": [{"name": "tierline.io/admission"}]}, "Pending"),
        (False, {}, "Succeeded"),
    ],
)
def test_a_pod_that_was_made_without_policies_is_known(
    outside: bool, spec: dict[str, Any], phase: str
) -> None:
    metadata = {"name": "p", "annotations": {"tierline.io/task": "m"}}
    found = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    assert pod_view(found).outside is outside
    going = {**found, "metadata": {**metadata, "deletionTimestamp": "2026-11-21T00:00:00Z"}}
    assert not pod_view(going).outside
