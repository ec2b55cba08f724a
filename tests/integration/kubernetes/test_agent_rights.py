"""What a node's agent may write: objects of its own node, and no others."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from tests.unit.api.api_objects import node as inventory
from tests.unit.api.api_objects import profile as measured

from tierline_cluster.api import Api, ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_kube.events import Reporter, event

HERE, THERE = "node-here", "node-there"
ACCOUNT = "tierline-agent"
RESOURCE = "resource.k8s.io/v1"


class Agent(NamedTuple):
    """An agent's view of the server, and where it runs."""

    api: Api
    namespace: str


def rights(namespace: str, account: str) -> list[Manifest]:
    """Return what RBAC gives an agent: all of these kinds, as it cannot tell nodes apart."""
    every = ["get", "list", "create", "update", "patch", "delete"]
    node_aware = ["associated-node:update", "associated-node:patch"]
    groups = (
        ("tierline.io", ["memnodes", "memnodes/status", "memprofiles"], every),
        ("events.k8s.io", ["events"], every),
        ("resource.k8s.io", ["resourceslices", "resourceclaims/status"], every),
        ("resource.k8s.io", ["resourceclaims"], ["get", "list"]),
        ("resource.k8s.io", ["resourceclaims/driver"], node_aware),
    )
    name = f"{account}-{namespace}"
    api_version = "rbac.authorization.k8s.io/v1"
    return [
        {
            "apiVersion": api_version,
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [group], "resources": resources, "verbs": verbs}
                for group, resources, verbs in groups
            ],
        },
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": name,
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    ]


def account(plane: ControlPlane, namespace: str, name: str) -> None:
    """Make a service account with an agent's rights."""
    metadata = {"name": name, "namespace": namespace}
    plane.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    for manifest in rights(namespace, name):
        plane.api.apply(manifest)


def token(plane: ControlPlane, namespace: str, name: str, pod: Manifest | None) -> str:
    """Return a token of a service account as the kubelet gets it for `pod`, or one of no pod."""
    spec: dict[str, Any] = {"audiences": [plane.server]}
    if pod is not None:
        metadata = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1"}
        spec["boundObjectRef"] = bound | {"name": metadata["name"], "uid": metadata["uid"]}
    address = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made: str = plane.api.request("POST", address, request)["status"]["token"]
    return made


def pod_of(plane: ControlPlane, namespace: str, name: str, node: str) -> Manifest:
    """Return a pod of the service account `name` on `node`."""
    return plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{node}", "namespace": namespace},
            "spec": {
                "serviceAccountName": name,
                "nodeName": node,
                "containers": [{"name": "agent", "image": "example.local/agent:1"}],
            },
        }
    )


@pytest.fixture
def agent(opting_in: ControlPlane, anything: str) -> Agent:
    """The agent of the node HERE."""
    for node in (HERE, THERE):
        opting_in.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    account(opting_in, anything, ACCOUNT)
    pod = pod_of(opting_in, anything, ACCOUNT, HERE)
    made = Agent(opting_in.api.with_token(token(opting_in, anything, ACCOUNT, pod)), anything)

    def at_work() -> bool:  # RBAC comes before any policy, which then refuses
        try:
            made.api.create(bare(THERE), dry_run=True)
        except ApiError as refusal:
            return "of its own node only" in str(refusal)
        return False

    wait_until("the agent's rights are not at work", at_work, opting_in.daemons)
    return made


def bare(name: str) -> Manifest:
    """Return the MemNode `name` without status."""
    manifest = inventory(metadata__name=name)
    del manifest["status"]
    return manifest


def resource_slice(
    node: str, driver: str = "tierline.io", *, named: str = "", pool: str = ""
) -> Manifest:
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{named or node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "cpu", "allowMultipleAllocations": True}],
        },
    }


def allocated_claim(plane: ControlPlane, namespace: str, node: str) -> Manifest:
    """Return a claim with its device on `node`."""
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    claim = plane.api.create(
        {
            "apiVersion": RESOURCE,
            "kind": "ResourceClaim",
            "metadata": {"name": f"claim-{node}", "namespace": namespace},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "device", "driver": "tierline.io", "pool": node, "device": "cpu"}
    allocation = {
        "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        "devices": {"results": [result | {"shareID": str(uuid.uuid4())}]},
    }
    return plane.api.merge(claim, {"status": {"allocation": allocation}}, subresource="status")


def reported(claim: Manifest) -> Manifest:
    """Return what an agent reports of the device of `claim`."""
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    device = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    return {"status": {"devices": [device | {"data": {"streamedBytes": 1}}]}}


def test_an_agent_writes_the_node_it_runs_on(agent: Agent) -> None:
    stored = agent.api.apply(bare(HERE))
    status = inventory()["status"]
    agent.api.apply(bare(HERE) | {"status": status}, subresource="status")
    agent.api.delete(stored)


def test_an_agent_writes_no_other_node(agent: Agent, opting_in: ControlPlane) -> None:
    sentence = "an agent writes the MemNode of its own node only"
    with pytest.raises(ApiError, match=sentence):
        agent.api.apply(bare(THERE))
    stored = opting_in.api.apply(bare(THERE))
    with pytest.raises(ApiError, match=sentence):
        agent.api.merge(stored, {"status": {"agentVersion": "0"}}, subresource="status")
    with pytest.raises(ApiError, match=sentence):
        agent.api.delete(stored)
    opting_in.api.delete(stored)


def test_an_agent_publishes_the_devices_of_its_node(agent: Agent) -> None:
    stored = agent.api.apply(resource_slice(HERE))
    agent.api.delete(stored)


def test_an_agent_publishes_no_devices_elsewhere(agent: Agent, opting_in: ControlPlane) -> None:
    sentence = "ResourceSlices of the driver tierline.io and of its own node only"
    for foreign in (
        resource_slice(THERE),
        resource_slice(HERE, "gpu.example.com"),
        resource_slice(HERE, named=THERE),
        resource_slice(HERE, pool=THERE),
    ):
        with pytest.raises(ApiError, match=sentence):
            agent.api.apply(foreign)
    stored = opting_in.api.apply(resource_slice(THERE))
    with pytest.raises(ApiError, match=sentence):
        agent.api.delete(stored)
    opting_in.api.delete(stored)


def test_an_agent_reports_on_claims_of_its_node(agent: Agent, opting_in: ControlPlane) -> None:
    claim = allocated_claim(opting_in, agent.namespace, HERE)
    after = agent.api.merge(claim, reported(claim), subresource="status")

    assert after["status"]["devices"][0]["data"] == {"streamedBytes": 1}


def test_an_agent_reports_on_no_other_claim(agent: Agent, opting_in: ControlPlane) -> None:
    claim = allocated_claim(opting_in, agent.namespace, THERE)
    with pytest.raises(ApiError, match="forbidden"):
        agent.api.merge(claim, reported(claim), subresource="status")
    finalizers = {"metadata": {"finalizers": ["example.com/mine"]}}
    with pytest.raises(ApiError, match="on its own node only"):
        agent.api.merge(claim, finalizers, subresource="status")


def test_an_agent_allocates_nothing(agent: Agent, opting_in: ControlPlane) -> None:
    claim = allocated_claim(opting_in, agent.namespace, HERE)
    with pytest.raises(ApiError, match="resourceclaims/binding"):
        agent.api.merge(claim, {"status": {"allocation": None}}, subresource="status")


def test_a_token_without_node_writes_nothing(agent: Agent, opting_in: ControlPlane) -> None:
    homeless = opting_in.api.with_token(token(opting_in, agent.namespace, ACCOUNT, None))
    with pytest.raises(ApiError, match="the agent's token names no node; use its pod's own"):
        homeless.apply(bare(HERE))


def test_other_accounts_are_not_bound_to_a_node(agent: Agent, opting_in: ControlPlane) -> None:
    account(opting_in, agent.namespace, "operator")
    other = opting_in.api.with_token(token(opting_in, agent.namespace, "operator", None))

    def may_write() -> bool:
        try:
            other.create(bare(THERE), dry_run=True)
        except ApiError:
            return False
        return True

    wait_until("the account's rights are not at work", may_write, opting_in.daemons)
    other.delete(other.apply(bare(THERE)))


def told(agent: Agent, **changes: Any) -> Manifest:
    """Return an event as the agent of HERE writes it, with changes."""
    reporter = Reporter("tierline.io/agent", HERE, "Prepare")
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": agent.namespace, "name": "robot"}
    name = {"metadata": {"namespace": agent.namespace, "name": f"robot.{uuid.uuid4().hex}"}}
    return event(reporter, about, "Killed", "why", 1, normal=False) | name | changes


def profile(agent: Agent, node: str, **device: str) -> Manifest:
    """Return a MemProfile of a device of the MemNode HERE, with changes, made by `node`."""
    manifest = measured()
    (known, *_) = inventory()["status"]["devices"]
    same = {"kind": known["kind"], "product": known["product"]}
    manifest["metadata"] = {
        "name": "measured",
        "namespace": agent.namespace,
        "annotations": {"tierline.io/node": node},
    }
    manifest["spec"]["device"] |= same | device
    return manifest


def about_node(node: str) -> Manifest:
    """Return the change by which an event is about a MemNode."""
    about = {"kind": "MemNode", "apiVersion": "tierline.io/v1alpha1", "name": node}
    return {"regarding": about, "metadata": {"namespace": "default", "name": f"{node}.1"}}


def test_an_agent_tells_of_pods_and_claims_as_its_node(agent: Agent) -> None:
    agent.api.create(told(agent))


def test_an_agent_tells_of_its_own_node(agent: Agent) -> None:
    agent.api.delete(agent.api.create(told(agent, **about_node(HERE))))


@pytest.mark.parametrize(
    "changes",
    [
        {"reportingInstance": THERE},
        {"reportingInstance": HERE[:4]},
        {"reportingController": "kubelet"},
        {"reportingController": "tierline.io/operator"},
        {"regarding": {"kind": "MemTask", "apiVersion": "tierline.io/v1alpha1", "name": "robot"}},
        about_node(THERE),
    ],
    ids=str,
)
def test_an_agent_tells_nothing_as_others(agent: Agent, changes: dict[str, Any]) -> None:
    if changes.get("regarding", {}).get("kind") == "MemTask":
        changes["regarding"]["namespace"] = agent.namespace
    with pytest.raises(ApiError, match="events of its own node, about it, claims and pods only"):
        agent.api.create(told(agent, **changes))


def test_a_user_brings_profiles_where_no_node_is_yet(agent: Agent, opting_in: ControlPlane) -> None:
    brought = profile(agent, HERE)
    brought["metadata"] = {"name": "brought", "namespace": agent.namespace}
    assert opting_in.api.create(brought, dry_run=True)


def test_an_agent_writes_profiles_of_its_own_devices(agent: Agent, opting_in: ControlPlane) -> None:
    opting_in.api.apply(bare(THERE))
    agent.api.apply(bare(HERE))
    agent.api.apply(bare(HERE) | {"status": inventory()["status"]}, subresource="status")
    nameless = {"name": "measured", "namespace": agent.namespace}
    for refused in (profile(agent, THERE), profile(agent, HERE) | {"metadata": nameless}):
        with pytest.raises(ApiError, match="MemProfiles that name its own node only"):
            agent.api.create(refused)

    def knows_the_devices() -> bool:  # the server takes parameters from a watch, too
        try:
            agent.api.create(profile(agent, HERE, product="another"), dry_run=True)
        except ApiError as error:
            return "MemProfiles of a device of its own node only" in str(error)
        return False

    wait_until("the node is no parameter yet", knows_the_devices, opting_in.daemons)
    agent.api.create(profile(agent, HERE))
    for node in (HERE, THERE):
        opting_in.api.delete(bare(node))
