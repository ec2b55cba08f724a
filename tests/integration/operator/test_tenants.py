"""Tenants (docs/operations/tenants.md): what a namespace may take, and who may look."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from tests.integration.operator.running import User, conditions, until
from tests.integration.operator.test_places import gauge, operator, templated, whole
from tests.integration.operator.test_telling import Plugin, kubectl, plugin, viewer_of
from tests.unit.placement.fleets import node, profile, quota, task

from tierline_api.objects.memquota import TierQuota
from tierline_api.objects.plan import Tier
from tierline_cluster.api import ApiError, Manifest

__all__ = ["operator", "plugin"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
MODEL_MIB = 64
WORKSPACE_MIB = 4
BOTH: dict[str, Any] = {
    "fastMemory": f"{2 * MODEL_MIB + WORKSPACE_MIB}Mi",
    "tiers": [{"tier": "dram", "capacity": f"{2 * MODEL_MIB}Mi"}],
    "linkPercent": 0,
}
ONE: dict[str, Any] = {
    "fastMemory": f"{MODEL_MIB + WORKSPACE_MIB}Mi",
    "tiers": [{"tier": "dram", "capacity": f"{MODEL_MIB}Mi"}],
    "linkPercent": 0,
}


def limit(user: User, **hard: str) -> Manifest:
    """A ResourceQuota that is in force."""
    metadata = {"name": "limit", "namespace": user.namespace}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    made_at = -math.inf

    def counts() -> bool:
        """The controller looks for new kinds every 30 s, and at known quotas every 5 min."""
        nonlocal made_at
        if time.monotonic() - made_at > 5:
            user.api.delete(made)
            user.api.apply(made | {"spec": {"hard": hard}})
            made_at = time.monotonic()
        return (user.api.get(made).get("status") or {}).get("used", {}).keys() == {*hard}

    until("the quota counts", counts)
    return made


def used(user: User, name: str) -> Any:
    """What a MemQuota says is taken."""
    found = user.api.get(user.task(name) | {"kind": "MemQuota"})
    return (found.get("status") or {}).get("used")


def test_a_quota_says_how_much_of_it_is_taken(user: User, operator: Any, plugin: Plugin) -> None:
    user.node(node("node-a"))
    user.apply(profile("m", mib=MODEL_MIB, workspace_mib=WORKSPACE_MIB))
    tiers = (TierQuota(tier=Tier.DRAM, capacity_bytes=2**28),)
    user.apply(quota("limit", fast_mib=2 * (2 * MODEL_MIB + WORKSPACE_MIB), tiers=tiers))
    for name in ("one", "two"):
        user.apply(whole(name))
        user.wait_task(name, "Admitted")

    until("both are counted", lambda: used(user, "limit") == BOTH)
    until("the metric", lambda: gauge(operator, "tierline_operator_quota_used_ratio") == 0.5 + 0.5)
    shown = kubectl(user.plane, "get", "memquota", "-n", user.namespace, "-o", "wide")
    columns, row = (line.split() for line in shown.splitlines())
    table = dict(zip(columns, row, strict=False))
    assert (table["FAST-USED"], table["FAST-LIMIT"]) == ("132Mi", "264Mi")
    assert (table["DRAM-USED"], table["DRAM-LIMIT"]) == ("128Mi", "256Mi")

    user.api.delete(user.task("two"))
    until("what is left is counted", lambda: used(user, "limit") == ONE)


def test_a_namespace_may_have_so_many_tasks(user: User) -> None:
    """Also of those that pods bring along."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    limit(user, **{"count/memtasks.tierline.io": "1"})
    user.apply(task("one", of="m"))
    user.wait_task("one", "Admitted")

    with pytest.raises(ApiError, match="exceeded quota: limit"):
        user.apply(task("two", of="m"))
    inline = {"period": "100ms", "budget": "1Gi", "device": "cpu", "profile": "m"}
    user.pod("p", "brought", **inline)
    until("it is told", lambda: "MemTaskRefused" in dict(user.events("p")))
    assert "exceeded quota: limit" in dict(user.events("p"))["MemTaskRefused"]


@pytest.mark.parametrize(
    "resource",
    ["count/resourceclaims.resource.k8s.io", "tierline.io.deviceclass.resource.k8s.io/devices"],
)
def test_a_namespace_may_have_so_many_claims(user: User, resource: str, plugin: Plugin) -> None:
    """Each pod of a task has one."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    limit(user, **{resource: "1"})
    user.apply(task("m", replicas=2))
    user.pod("one", "m")
    user.wait_placed("one")
    user.pod("two", "m")

    until("it is told", lambda: "exceeded quota: limit" in plugin.tell("why-pending", "m"))
    assert [claim["metadata"]["name"] for claim in user.claims()][1:] == []


def test_a_namespace_may_have_so_many_pods(user: User, plugin: Plugin) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    limit(user, pods="0")
    user.apply(templated("m"))

    user.wait_task("m", "ReplicaFailure", "Ready")
    assert "exceeded quota: limit" in conditions(user.api.get(user.task("m")))["Ready"]["message"]


def test_a_task_that_an_administrator_takes_away_closes_no_device(user: User) -> None:
    """Its pod runs on, and holds what its claim notes."""
    user.node(node("node-a"))
    user.apply(profile("m", mib=MODEL_MIB))
    user.apply(whole("gone"))
    user.pod("p", "gone")
    user.wait_placed("p")
    user.api.merge(user.task("gone"), {"metadata": {"finalizers": None}})
    user.api.delete(user.task("gone"))
    user.api.wait_gone(user.task("gone"))

    user.apply(whole("next"))
    assert user.wait_task("next", "Admitted")["status"]["node"] == "node-a"
    user.api.delete(user.task("next"))


def test_who_may_view_one_namespace_sees_its_tasks(user: User, plugin: Plugin) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.apply(quota("limit", fast_mib=512))
    user.wait_task("m", "Admitted")
    viewer = viewer_of(user)
    here = ("-n", user.namespace)

    for command in (("top",), ("explain", "m"), ("why-pending",), ("why-pending", "m")):
        ended, told, errors = plugin.run(*command, *here, kubeconfig=viewer)
        assert (ended, errors) == (0, "")
        assert "m" in told.replace(f"{user.namespace}/m", "m").replace(":", "").split()
    for command in (("top",), ("why-pending",)):
        ended, _, errors = plugin.run(*command, "-A", kubeconfig=viewer)
        assert ended == 1
        assert "you may not; ask for the ClusterRole tierline-view" in errors
