"""What the example for Kubernetes says, with its manifest as it is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.integration.operator.running import User, until
from tests.unit.placement.fleets import node, profile

from tierline_cluster.api import Manifest
from tierline_cluster.versions import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
EXAMPLE = REPOSITORY / "examples" / "4-statefulset" / "tasks.yaml"


def pods(user: User) -> list[Manifest]:
    return user.api.list("v1", "Pod", user.namespace)


def test_each_pod_of_a_statefulset_gets_a_place_of_its_own(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("camera"))
    wanted: dict[str, Any] = {
        one["kind"]: one | {"metadata": one["metadata"] | {"namespace": user.namespace}}
        for one in yaml.safe_load_all(EXAMPLE.read_text())
        if one["kind"] != "Namespace"
    }
    for manifest in wanted.values():
        user.api.create(manifest)

    def allocated() -> int:
        claims = user.api.list("resource.k8s.io/v1", "ResourceClaim", user.namespace)
        return sum("allocation" in (claim.get("status") or {}) for claim in claims)

    until("both have a place", lambda: allocated() == 2)
    user.wait_task("camera", "Admitted")
    until(
        "no pod waits at the gate",
        lambda: not any(p["spec"].get("schedulingGates") for p in pods(user)),
    )
    names = {pod["metadata"]["name"] for pod in pods(user)}
    assert names == {"camera-0", "camera-1"}
    template = user.api.get(wanted["StatefulSet"])["spec"]["template"]
    assert "resourceClaims" not in template["spec"], "the workload stays as it was written"
    user.api.delete(wanted["StatefulSet"], propagationPolicy="Foreground")
