"""What the operator's token may do with the pods, Deployments and claims that it may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.chart.helm import SYSTEM, rights
from tests.integration.kubernetes.test_agent_rights import HERE, allocated_claim, token
from tests.unit.placement.fleets import task

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


MARKS = {TASK: "robot", "app.kubernetes.io/managed-by": "tierline"}
FOREIGN = {**OWNER, "apiVersion": "example.com/v1", "kind": "App"}


def template(namespace: str, owners: list[dict[str, Any]], **changes: Any) -> Manifest:
    """A claim template as the operator makes it."""
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    claims = {"metadata": {"labels": {TASK: "robot"}}, "spec": {"devices": {"requests": [request]}}}
    metadata = {"name": "robot", "namespace": namespace, "ownerReferences": owners}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata | changes,
        "spec": claims,
    }


@pytest.mark.parametrize("make", [deployment, template])
@pytest.mark.parametrize("owner", ["nobody", "another task", "nobody that controls it"])
def test_it_adopts_what_bears_all_marks(
    operator: Operator, make: Callable[..., Manifest], owner: str
) -> None:
    owners = {
        "nobody": [],
        "another task": [reference_to(operator, "another")],
        "nobody that controls it": [{**FOREIGN, "controller": False}],
    }[owner]
    left = operator.plane.api.create(make(operator.namespace, owners, labels=MARKS))
    with pytest.raises(ApiError, match="of MemTasks of their namespace and name only"):
        operator.api.merge(left, {"metadata": {"labels": {"more": "labels"}}})
    adopted = {"metadata": {"ownerReferences": [OWNER]}}
    assert operator.api.merge(left, adopted)["metadata"]["ownerReferences"][0]["name"] == "robot"


def reference_to(operator: Operator, name: str) -> dict[str, Any]:
    """The reference to a MemTask that is there: what others own is collected."""
    manifest = task(name).to_api()
    manifest["metadata"] = {"name": name, "namespace": operator.namespace}
    made = operator.plane.api.create(manifest)
    return {**OWNER, "name": name, "uid": made["metadata"]["uid"]}


@pytest.mark.parametrize("make", [deployment, template])
@pytest.mark.parametrize(
    ("owners", "labels"),
    [
        ([], {}),
        ([], {TASK: "robot"}),
        ([], {"app.kubernetes.io/managed-by": "tierline"}),
        ([], {**MARKS, TASK: "another"}),
        ([FOREIGN], MARKS),
        ([{**FOREIGN, "kind": "MemTask"}], MARKS),
    ],
)
def test_it_adopts_nothing_else(
    operator: Operator,
    make: Callable[..., Manifest],
    owners: list[dict[str, Any]],
    labels: dict[str, str],
) -> None:
    theirs = operator.plane.api.create(make(operator.namespace, owners, labels=labels))
    for change in ({"ownerReferences": [OWNER]}, {"ownerReferences": [OWNER], "labels": MARKS}):
        with pytest.raises(ApiError, match="of MemTasks of their namespace and name only"):
            operator.api.merge(theirs, {"metadata": change})


def test_it_has_pods_made_that_opt_in_only(operator: Operator) -> None:
    """What others made of the template is no reason to leave a Deployment without its owner."""
    left = deployment(operator.namespace, [], labels=MARKS)
    del left["spec"]["template"]["metadata"]["annotations"]
    left = operator.plane.api.create(left)
    mine = {"metadata": {"ownerReferences": [reference_to(operator, "robot")]}}
    operator.api.merge(left, mine)
    other = {"spec": {"template": {"metadata": {"annotations": {"example.com/a": "b"}}}}}
    with pytest.raises(ApiError, match="Deployments of MemTasks"):
        operator.api.merge(left, other)


def test_it_adopts_no_deployment_of_other_pods(operator: Operator) -> None:
    theirs = deployment(operator.namespace, [], labels=MARKS)
    more = {TASK: "robot", "app": "theirs"}
    theirs["spec"]["selector"]["matchLabels"] = theirs["spec"]["template"]["metadata"]["labels"] = (
        more
    )
    operator.plane.api.create(theirs)
    with pytest.raises(ApiError, match="Deployments of MemTasks"):
        operator.api.merge(theirs, {"metadata": {"ownerReferences": [OWNER]}})


def test_it_adopts_no_template_of_other_claims(operator: Operator) -> None:
    theirs = template(operator.namespace, [], labels=MARKS)
    del theirs["spec"]["metadata"]
    operator.plane.api.create(theirs)
    with pytest.raises(ApiError, match="ResourceClaimTemplates of MemTasks"):
        operator.api.merge(theirs, {"metadata": {"ownerReferences": [OWNER]}})


def test_it_makes_templates_of_memtasks_only(operator: Operator) -> None:
    with pytest.raises(ApiError, match="ResourceClaimTemplates of MemTasks"):
        operator.api.create(template(operator.namespace, [], labels=MARKS))
    operator.api.create(template(operator.namespace, [OWNER], labels=MARKS))


def test_it_allocates_no_devices_of_others(operator: Operator) -> None:
    claim = allocated_claim(operator.plane, operator.namespace, HERE)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    del result["shareID"]
    foreign = claim["status"]["allocation"]
    foreign["devices"]["results"] = [result | {"driver": "gpu.example.com"}]
    cleared = operator.plane.api.merge(claim, {"status": {"allocation": None}}, "status")
    with pytest.raises(ApiError, match="the operator allocates devices of"):
        operator.api.merge(cleared, {"status": {"allocation": foreign}}, "status")
