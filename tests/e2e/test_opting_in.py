"""An annotated Deployment in a restricted namespace: its pods wait, get their library, and run."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import Running, phase, pod
from tests.e2e.installed import PATIENCE_S, NodeAgent
from tests.e2e.test_agent import forget, memprofile, memtask
from tests.integration.operator.running import Operator, until
from tests.unit.api.pods.pod_cases import container

from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # also on a busy machine
REPLICAS = 2


@pytest.fixture
def restricted(cluster: Running, namespace: str) -> str:
    """A namespace that enforces PodSecurity `restricted`."""
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.merge(named, {"metadata": {"labels": labels}})
    return namespace


def deployment(namespace: str) -> Manifest:
    """Return a Deployment with pods that opt in to the task `camera`."""
    spec = pod(namespace, "unused", "grep -c libtierline /proc/self/maps; sleep 600")["spec"]
    (program,) = spec["containers"]
    spec["containers"] = [container() | program]
    del spec["restartPolicy"]
    labels = {"app": "camera"}
    metadata = {"labels": labels, "annotations": {"tierline.io/task": "camera"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "camera", "namespace": namespace},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def test_the_pods_of_a_deployment_wait_and_then_run_with_the_library(
    cluster: Running, agent: NodeAgent, operator: Operator, restricted: str
) -> None:
    api = cluster.api
    wanted = deployment(restricted)
    api.create(wanted)
    until("no pods", lambda: len(api.list("v1", "Pod", restricted)) == REPLICAS, PATIENCE_S)
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": found["metadata"]}
        for found in api.list("v1", "Pod", restricted)
    ]
    assert all(api.get(waiting)["spec"]["schedulingGates"] for waiting in pods)

    for manifest in (memprofile(restricted, "camera"), memtask(restricted, "camera")):
        api.create(manifest)
    for running in pods:
        api.wait(running, lambda found: phase(found) == "Running", PATIENCE_S)
        logs = api.address(running, subresource="log")

        def said(logs: str = logs) -> bool:
            return api.request("GET", logs) != ""

        until("it says nothing", said, PATIENCE_S)
        # How often the library is in the memory of `grep`.
        assert int(api.request("GET", logs)) > 0
    assert len(agent.described) == REPLICAS

    api.delete(wanted, propagationPolicy="Foreground")
    api.wait_gone(wanted, PATIENCE_S)
    forget(cluster, restricted)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)
