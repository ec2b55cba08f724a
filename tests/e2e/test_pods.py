"""The cluster itself: a node, pods that run, and nothing left of it."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import Running, phase, pod

pytestmark = pytest.mark.e2e


def test_the_node_is_ready_with_the_pinned_versions(cluster: Running) -> None:
    (node,) = cluster.api.list("v1", "Node")

    info = node["status"]["nodeInfo"]
    assert info["kubeletVersion"].startswith("v1.36.")
    assert info["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_pod_runs_and_its_logs_can_be_read(cluster: Running, namespace: str) -> None:
    wanted = pod(namespace, "hello", "echo hello from $(id -u)")
    cluster.api.create(wanted)
    cluster.api.wait(wanted, lambda found: phase(found) == "Succeeded")

    address = cluster.api.address(wanted, subresource="log")
    assert cluster.api.request("GET", address) == "hello from 65532\n"


def test_kubectl_executes_in_a_running_pod(cluster: Running, namespace: str) -> None:
    wanted = pod(namespace, "shell", "sleep 600")
    cluster.api.create(wanted)
    cluster.api.wait(wanted, lambda found: phase(found) == "Running")

    said = cluster.plane.kubectl("exec", "-n", namespace, "shell", "--", "echo", "inside")
    assert said == "inside\n"


def test_a_pod_reaches_the_api_server_as_its_service_account(
    cluster: Running, namespace: str
) -> None:
    wanted = pod(
        namespace,
        "client",
        "/programs/kubectl get --raw /version",
        volumes=[{"name": "programs", "hostPath": {"path": str(cluster.plane.programs)}}],
    )
    wanted["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "programs", "mountPath": "/programs"}
    ]
    cluster.api.create(wanted)
    done = cluster.api.wait(wanted, lambda found: phase(found) in {"Succeeded", "Failed"})

    said = cluster.api.request("GET", cluster.api.address(wanted, subresource="log"))
    assert (phase(done), '"gitVersion": "v1.36.' in said) == ("Succeeded", True), said


def test_a_deleted_pod_is_gone_with_its_processes(cluster: Running, namespace: str) -> None:
    wanted = pod(namespace, "brief", "sleep 86399")
    cluster.api.create(wanted)
    cluster.api.wait(wanted, lambda found: phase(found) == "Running")
    cluster.api.delete(wanted)
    cluster.api.wait_gone(wanted)

    assert cluster.node.ctr("tasks", "list", "-q") == ""
