"""Objects of a cluster as the plugin reads them, also those that another release wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tierline_api.objects.conditions import Reason
from tierline_cli.cluster.views import UNSEEN, node_view, pod_view, task_view
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


def test_there_is_advice_for_each_reason_to_wait() -> None:
    never = {
        *(Reason.PROFILE_FOUND, Reason.ADMITTED, Reason.RUNNING, Reason.STARTING),
        *(Reason.NOT_RUNNING, Reason.NO_MISSES, Reason.DEADLINES_MISSED, Reason.NO_JOBS),
        *(Reason.ALL_WELL, Reason.LINK_DEGRADED, Reason.TIER_FAILED, Reason.AGENT_STARTING),
        *(Reason.REGISTERED, Reason.KUBELET_NOT_REGISTERED, Reason.AGENT_SILENT),
        Reason.AGENT_CRASHING,
        *(Reason.REPLICA_FAILURE, Reason.STALLED),
        *(Reason.DEVICE_FAILED, Reason.NOT_AS_CONFIGURED, Reason.OVERRUNS_NOT_HELD),
    }
    assert set(ADVICE) == {UNSEEN, *(set(Reason) - never)}
