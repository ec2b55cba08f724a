"""What the operator's token may do with the pods, Deployments and claims that it may write."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.chart.helm import SYSTEM, rights
from tests.integration.kubernetes.test_agent_rights import HERE, allocated_claim, token

from tierline_cluster.api import JSON_PATCH, Api, ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until

ACCOUNT = "tierline-operator"
TASK = "tierline.io/task"
GATE, OTHER = "tierline.io/admission", "example.com/other"
OWNER = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemTask",
    "name": "robot",
    "uid": "0b0b0b0b-0000-4000-8000-000000000000",
    "controller": True,
}


class Operator(NamedTuple):
    """The operator's view of the server, and a namespace that is not its own."""

    api: Api
    namespace: str
    plane: ControlPlane


@pytest.fixture
def operator(opting_in: ControlPlane, anything: str) -> Operator:
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    opting_in.api.apply(system)
    for manifest in rights("operator"):
        opting_in.api.apply(manifest)
    api = opting_in.api.with_token(token(opting_in, SYSTEM, ACCOUNT, None))

    def may_write() -> bool:
        try:
            api.create(deployment(anything, [OWNER]), dry_run=True)
        except ApiError:
            return False
        return True

    wait_until("the operator's rights are not at work", may_write, opting_in.daemons)
    return Operator(api, anything, opting_in)


def pod(namespace: str, *gates: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "robot", "namespace": namespace},
        "spec": {
            "schedulingGates": [{"name": gate} for gate in gates],
            "containers": [{"name": "main", "image": "example.local/robot:1"}],
        },
    }


def deployment(namespace: str, owners: list[dict[str, Any]], **changes: Any) -> Manifest:
    labels = {TASK: "robot"}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels, "annotations": labels},
            "spec": {"containers": [{"name": "main", "image": "example.local/robot:1"}]},
        },
    }
    metadata = {"name": "robot", "namespace": namespace, "ownerReferences": owners}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata | changes,
        "spec": spec,
    }


def patch(operator: Operator, *changes: dict[str, Any]) -> None:
    address = operator.api.address(pod(operator.namespace))
    operator.api.request("PATCH", address, list(changes), content_type=JSON_PATCH)


def test_it_takes_its_gate_from_a_pod(operator: Operator) -> None:
    operator.plane.api.create(pod(operator.namespace, OTHER, GATE))
    patch(operator, {"op": "remove", "path": "/spec/schedulingGates/1"})


@pytest.mark.parametrize(
    "change",
    [
        {"op": "remove", "path": "/spec/schedulingGates/0"},
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "example.local/mine:1"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": "mine"}},
        {"op": "add", "path": "/metadata/labels", "value": {"app": "victim"}},
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/a": "b"}},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/stays"]},
        {"op": "add", "path": "/metadata/ownerReferences", "value": [OWNER]},
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1},
        {
            "op": "add",
            "path": "/spec/tolerations/-",
            "value": {"key": "example.com/master", "operator": "Exists"},
        },
    ],
    ids=lambda change: str(change["path"]),
)
def test_it_changes_nothing_else_of_a_pod(operator: Operator, change: dict[str, Any]) -> None:
    operator.plane.api.create(pod(operator.namespace, OTHER, GATE))
    with pytest.raises(ApiError, match=r"takes the gate .* from a pod"):
        patch(operator, change)


def test_it_writes_deployments_of_memtasks(operator: Operator) -> None:
    operator.api.apply(deployment(operator.namespace, [OWNER]))


@pytest.mark.parametrize(
    ("owners", "changes"),
    [
        ([], {}),
        ([{**OWNER, "controller": False}], {}),
        ([{**OWNER, "kind": "MemNode"}], {}),
        ([{**OWNER, "apiVersion": "example.com/v1"}], {}),
        ([{**OWNER, "name": "another"}], {}),
        ([OWNER], {"name": "another"}),
    ],
)
def test_it_writes_no_others(
    operator: Operator, owners: list[dict[str, Any]], changes: dict[str, Any]
) -> None:
    sentence = "Deployments of MemTasks of their namespace and name only"
    with pytest.raises(ApiError, match=sentence):
        operator.api.create(deployment(operator.namespace, owners, **changes))


def test_it_takes_over_nobodys_deployment(operator: Operator) -> None:
    theirs = operator.plane.api.create(deployment(operator.namespace, []))
    with pytest.raises(ApiError, match="Deployments of MemTasks"):
        operator.api.merge(theirs, {"metadata": {"ownerReferences": [OWNER]}})


def test_it_allocates_no_devices_of_others(operator: Operator) -> None:
    claim = allocated_claim(operator.plane, operator.namespace, HERE)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    del result["shareID"]
    foreign = claim["status"]["allocation"]
    foreign["devices"]["results"] = [result | {"driver": "gpu.example.com"}]
    cleared = operator.plane.api.merge(claim, {"status": {"allocation": None}}, "status")
    with pytest.raises(ApiError, match="the operator allocates devices of"):
        operator.api.merge(cleared, {"status": {"allocation": foreign}}, "status")
