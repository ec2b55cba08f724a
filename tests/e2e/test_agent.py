"""The agent on a real node: a pod streams its weights, whatever becomes of the agent meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.conftest import Running, phase, pod
from tests.e2e.installed import EXTENT_BYTES, PATIENCE_S, NodeAgent, install, node_agent
from tests.e2e.python_image import PROGRAM, PYTHON, python_image
from tests.integration.operator.running import Nursery, Operator, until

from tierline_agent.devices.cpu import processor_name
from tierline_cluster.api import Manifest

pytestmark = pytest.mark.e2e
EXTENTS = 12
API = "tierline.io/v1alpha1"


@pytest.fixture(scope="module")
def agent(cluster: Running) -> Iterator[NodeAgent]:
    """Tierline on the cluster, its agent at work."""
    install(cluster.plane)
    archive = python_image().write(cluster.node.folder / "python.tar")
    cluster.node.import_image(archive)
    made = node_agent(cluster.plane, cluster.node)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def operator(
    cluster: Running, agent: NodeAgent, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator that leads."""
    nursery = Nursery()
    running = Operator(cluster.plane, nursery, tmp_path_factory.mktemp("operator"), "e2e").start()
    try:
        until("the operator leads", running.leads, PATIENCE_S)
        yield running
    finally:
        running.stop()
        nursery.close()


def memtask(namespace: str, name: str) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "MemTask",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "realtime": {"period": "1s"},
            "memory": {"budget": "4Mi"},
            "swap": {"policy": "Stream"},
            "device": {"kind": "cpu"},
        },
    }


def memprofile(namespace: str, name: str) -> Manifest:
    layer = {"bytes": EXTENT_BYTES, "computeTime": "1ms"}
    return {
        "apiVersion": API,
        "kind": "MemProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "device": {"kind": "cpu", "product": processor_name()},
            "layers": [{"name": f"layer{n}", **layer} for n in range(EXTENTS)],
            "workspace": "0",
        },
    }


def camera(namespace: str, name: str = "camera") -> Manifest:
    """A pod that runs the task `name`."""
    wanted = pod(namespace, name, "")
    wanted["metadata"]["annotations"] = {"tierline.io/task": name}
    (container,) = wanted["spec"]["containers"]
    container |= {
        "image": PYTHON,
        "command": ["/bin/python3", PROGRAM],
        "env": [
            {"name": "EXTENTS", "value": str(EXTENTS)},
            {"name": "PERIOD_S", "value": "0.2"},
        ],
    }
    return wanted


def log_of(cluster: Running, running: Manifest) -> list[str]:
    said: str = cluster.api.request("GET", cluster.api.address(running, subresource="log"))
    return said.split()


def jobs_of(cluster: Running, running: Manifest) -> int:
    """How many jobs a pod has run; all must have been right."""
    said = log_of(cluster, running)
    assert "WRONG" not in said, said
    return said.count("right")


def more_jobs(cluster: Running, running: Manifest) -> None:
    """Wait until a pod has run some more jobs."""
    before = jobs_of(cluster, running)
    until("no more jobs", lambda: jobs_of(cluster, running) >= before + 3, PATIENCE_S)


def claim_of(cluster: Running, namespace: str, pod_name: str) -> Manifest:
    """The claim of a pod."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    (claim,) = [
        kind | claim
        for claim in cluster.api.list(kind["apiVersion"], kind["kind"], namespace)
        if claim["metadata"]["ownerReferences"][0]["name"] == pod_name
    ]
    return claim


@pytest.fixture
def running(
    cluster: Running, operator: Operator, agent: NodeAgent, namespace: str
) -> Iterator[Manifest]:
    """A pod that streams, in a namespace that enforces PodSecurity `restricted`."""
    api = cluster.api
    for manifest in (memtask(namespace, "camera"), memprofile(namespace, "camera")):
        api.create(manifest)
    wanted = camera(namespace)
    api.create(wanted)
    try:
        api.wait(wanted, lambda found: phase(found) == "Running", PATIENCE_S)
        until("no job", lambda: jobs_of(cluster, wanted) >= 1, PATIENCE_S)
    except BaseException:
        print(agent.log, operator.log.read_text()[-4000:])
        print(api.get(wanted))
        raise
    yield wanted
    api.delete(wanted, gracePeriodSeconds=1)
    api.wait_gone(wanted, PATIENCE_S)
    api.delete(memtask(namespace, "camera"))
    api.wait_gone(memtask(namespace, "camera"), PATIENCE_S)


def test_a_pod_streams_its_weights_and_its_task_says_so(
    cluster: Running, agent: NodeAgent, namespace: str, running: Manifest
) -> None:
    api = cluster.api

    def observed(found: Manifest) -> dict[str, Any]:
        seen: dict[str, Any] = (found.get("status") or {}).get("observed") or {}
        return seen

    named = memtask(namespace, "camera")
    found = api.wait(named, lambda task: observed(task).get("jobs", 0) >= 3, PATIENCE_S)
    assert observed(found)["streamedBytesPerJob"] > 0
    assert found["status"]["phase"] == "Running"

    claim = claim_of(cluster, namespace, "camera")
    uid = claim["metadata"]["uid"]
    assert agent.traces() == {uid}
    published = {"metadata": {"name": f"{cluster.node.name}-tierline.io"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    (device,) = api.get(kind | published)["spec"]["devices"]
    assert device["name"] == "cpu"
    assert device["attributes"]["kind"] == {"string": "cpu"}

    api.delete(running, gracePeriodSeconds=1)
    api.wait_gone(running, PATIENCE_S)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)
