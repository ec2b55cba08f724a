"""An annotated Deployment in a restricted namespace: its pods wait, get their library, and run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import Running, phase, pod
from tests.e2e.driver import Driver
from tests.unit.pods.pod_cases import container

from tierline_api.optin import DRIVER, REQUEST
from tierline_cluster.api import Manifest
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY

pytestmark = pytest.mark.e2e
POLICIES = REPOSITORY / "charts" / "tierline" / "files" / "admission.yaml"
LIBRARY = Path(sys.prefix) / "lib" / "tierline" / "libtierline.so"
REPLICAS = 2


@pytest.fixture
def driver(cluster: Running) -> Iterator[Driver]:
    """The policies at work, and a driver that brings the library."""
    policies = list(yaml.safe_load_all(POLICIES.read_text()))
    for manifest in policies:
        cluster.api.apply(manifest)
    probe = pod("default", "probe", "true")
    probe["metadata"]["annotations"] = {"tierline.io/task": "probe"}

    def at_work() -> bool:
        return "schedulingGates" in cluster.api.create(probe, dry_run=True)["spec"]

    wait_until("the policies are not at work", at_work)
    files = {LIBRARY.name: LIBRARY}
    started = Driver(DRIVER, cluster.node.name, cluster.node.kubelet_root, cluster.api, files)
    started.start()
    assert started.registered.wait(30), "the kubelet did not accept the driver"
    yield started
    started.stop()
    for manifest in policies:
        cluster.api.delete(manifest)


@pytest.fixture
def restricted(cluster: Running, namespace: str) -> str:
    """A namespace that enforces PodSecurity `restricted`."""
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.merge(named, {"metadata": {"labels": labels}})
    return namespace


def deployment(namespace: str) -> Manifest:
    """Return a Deployment whose pods opt in to the task `camera`."""
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
    cluster: Running, restricted: str, driver: Driver
) -> None:
    api = cluster.api
    request = {"name": REQUEST, "exactly": {"deviceClassName": DRIVER}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "camera", "namespace": restricted},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    )
    wanted = deployment(restricted)
    api.create(wanted)
    wait_until("no pods", lambda: len(api.list("v1", "Pod", restricted)) == REPLICAS)
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": found["metadata"]}
        for found in api.list("v1", "Pod", restricted)
    ]
    assert all(api.get(waiting)["spec"]["schedulingGates"] for waiting in pods)

    claims = {driver.admit(waiting) for waiting in pods}
    assert len(claims) == REPLICAS
    for running in pods:
        api.wait(running, lambda found: phase(found) == "Running")
        logs = api.address(running, subresource="log")
        wait_until("it says nothing", lambda logs=logs: api.request("GET", logs) != "")  # type: ignore[misc]
        said = api.request("GET", logs)
        assert said.isascii()
        assert int(said) > 0, said  # how often the library is in the memory of `grep`
    assert set(driver.prepared) == claims

    api.delete(wanted, propagationPolicy="Foreground")
    api.wait_gone(wanted, timeout_s=60)
    assert set(driver.unprepared) == claims
