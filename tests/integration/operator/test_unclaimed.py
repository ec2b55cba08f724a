"""Pods that run without a claim keep their places, claims without a pod do not, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.operator.running import (
    ALONE,
    Nursery,
    Operator,
    User,
    conditions,
    placed,
    until,
)
from tests.integration.operator.test_places import WAITS, is_placed, templated, whole
from tests.integration.operator.test_telling import kubectl
from tests.integration.policies import apply_policies, policies
from tests.unit.placement.fleets import node, profile

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
COUNTED = "count/resourceclaims.resource.k8s.io"


@pytest.fixture
def operator(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """One that keeps places free for seconds."""
    running = Operator(prepared, nursery, tmp_path, "hasty", {**ALONE, **WAITS}).start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        running.stop()


def run(user: User, name: str) -> Manifest:
    """A task with a pod that runs, and what a kubelet would say of it; returns the pod."""
    user.wait_for_policies()
    user.apply(templated(name))
    found = until("its pod is bound", lambda: bound(user, name))
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    pod = {"apiVersion": "v1", "kind": "Pod", **found}
    user.api.merge(pod, {"status": ready}, subresource="status")
    user.wait_task(name, "Running", "Ready")
    return pod


def bound(user: User, name: str) -> Manifest | None:
    """The pod of a task that has its node, and its claim for it."""
    found = user.api.list("v1", "Pod", user.namespace, labelSelector=f"tierline.io/task={name}")
    there = [pod for pod in found if pod["spec"].get("nodeName")]
    claims = [claim for claim in user.claims() if (claim.get("status") or {}).get("reservedFor")]
    return there[0] if there and claims else None


def lose(user: User, claim: Manifest) -> None:
    """Delete a claim, and cut its finalizer: what only an administrator does."""
    user.api.delete(claim)
    user.api.merge(claim, {"metadata": {"finalizers": None}})
    user.api.wait_gone(claim)


def limit_claims(user: User, most: int) -> None:
    """Let nobody make another claim: Kubernetes makes one that is gone again, sooner or later."""
    metadata = {"name": "claims", "namespace": user.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    hard = {COUNTED: str(most)}
    user.api.apply(quota | {"spec": {"hard": hard}})
    user.api.wait(quota, lambda found: (found.get("status") or {}).get("hard") == hard)


def test_a_pod_whose_claim_is_lost_keeps_its_device_and_is_told_of(user: User) -> None:
    user.node(node("node-a", fast_mib=100))
    user.worker("node-a", pods=110)
    user.apply(profile("m"))
    pod = run(user, "m")
    limit_claims(user, 0)
    [claim] = user.claims()
    lose(user, claim)

    found = user.wait_task("m", "NoClaim")
    said = conditions(found)
    assert said["Ready"]["reason"] == "NoClaim"
    assert said["Ready"]["message"] == said["Admitted"]["message"]
    name = pod["metadata"]["name"]
    assert (
        f"pod {name} runs on node-a without the claim that it started with"
        in said["Ready"]["message"]
    )
    assert "NoClaim" in dict(user.events(name))
    until("the task has a warning", lambda: "NoClaim" in dict(user.events("m")))
    told = kubectl(user.plane, "tierline", "why-pending", "m", "-n", user.namespace)
    assert "what helps: delete the pods that the message names" in told

    # Nobody gets what it may hold, also when its place is kept free no longer.
    user.apply(whole("other"))
    waits = f"device node-a/cpu0 runs pods whose claims are lost ({name}); delete them"
    user.api.wait(
        user.task("other"),
        lambda task: waits in conditions(task).get("Admitted", {}).get("message", ""),
    )
    limit_claims(user, 9)
    user.api.delete(user.task("m"))
    user.api.wait_gone(user.named_pod(name))
    user.wait_task("other", "Admitted")


def test_a_claim_that_is_emptied_under_its_pod_is_allocated_where_that_runs(user: User) -> None:
    for name in ("node-a", "node-b"):
        user.node(node(name, fast_mib=100))
        user.worker(name, pods=110)
    user.apply(profile("m"))
    pod = run(user, "m")
    on = pod["spec"]["nodeName"]
    [claim] = user.claims()
    user.apply(whole("other", replicas=0))
    wrong = {"tierline.io/task": "other", "tierline.io/node": "elsewhere"}
    user.api.merge(claim, {"metadata": {"labels": wrong}})
    nothing = {"allocation": None, "reservedFor": None}
    user.api.merge(claim, {"status": nothing}, subresource="status")

    again = user.api.wait(claim, lambda found: is_placed(found) and labels(found) != wrong)
    assert placed(again) == (on, "cpu0")
    assert labels(again) == {"tierline.io/task": "m", "tierline.io/node": on}


def labels(claim: Manifest) -> dict[str, str]:
    """The labels of a claim."""
    found: dict[str, str] = claim["metadata"]["labels"]
    return found


@pytest.mark.parametrize("reserved", [True, False])
def test_a_claim_without_owner_gives_its_place_back_when_no_pod_has_it(
    user: User, reserved: bool
) -> None:
    user.node(node("node-a", fast_mib=200))
    user.worker("node-a", pods=110)
    user.apply(profile("m"))
    pod = run(user, "m")
    [claim] = user.claims()
    user.api.merge(claim, {"metadata": {"ownerReferences": None}})
    if not reserved:  # so Kubernetes will not end its allocation, either
        user.api.merge(claim, {"status": {"reservedFor": None}}, subresource="status")
    user.delete_pod(pod["metadata"]["name"])

    user.api.wait(claim, lambda found: not is_placed(found))
    until("its next pod has a place", lambda: [*filter(is_placed, user.claims())])
    user.api.wait(user.task("m"), lambda found: found["status"]["placed"] == 1)
    if not reserved:
        said = until("it is told", lambda: dict(user.events("m")).get("ClaimWithoutPod"))
        assert claim["metadata"]["name"] in said
    user.api.delete(claim)


def test_a_pod_made_without_policies_is_told_so(
    user: User, prepared: ControlPlane, operator: Operator
) -> None:
    user.wait_for_policies()
    [policy] = [one for one in policies() if one["kind"] == "MutatingAdmissionPolicy"]
    operator.stop()
    user.api.delete(policy)
    early = user.plain_pod("early", "m")
    until("pods are not gated", lambda: not gates(user.api.create(early, dry_run=True)))
    user.api.create(early)
    apply_policies(prepared)
    operator.start()

    said = until("it is told", lambda: dict(user.events("early")).get("NoClaim"))
    assert "it has neither claim nor gate; delete it: the next one gets both" in said
    told = kubectl(user.plane, "tierline", "why-pending", "-n", user.namespace)
    assert f"Pod {user.namespace}/early runs outside of Tierline, not as MemTask m" in told
    assert "  what helps: delete it; the next one gets both" in told


def gates(pod: Manifest) -> object:
    """The scheduling gates of a pod."""
    return pod["spec"].get("schedulingGates")
