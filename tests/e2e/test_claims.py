"""Dynamic resources on this cluster: a gated pod, a claim allocated by hand, a CDI device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.conftest import Running, phase, pod
from tests.e2e.driver import Driver

from tierline_cluster.api import Manifest

pytestmark = pytest.mark.e2e
DRIVER = "trial.tierline.io"


@pytest.fixture
def driver(cluster: Running) -> Iterator[Driver]:
    """A driver that the kubelet has accepted, with a DeviceClass that never matches by itself."""
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": "false"}}]},
    }
    cluster.api.apply(device_class)
    started = Driver(DRIVER, cluster.node.name, cluster.node.kubelet_root, cluster.api)
    started.start()
    assert started.registered.wait(30), "the kubelet did not accept the driver"
    yield started
    started.stop()
    cluster.api.delete(device_class)


def gated(namespace: str, template: str) -> Manifest:
    """Return a pod that waits at a gate and claims what `template` says."""
    wanted = pod(
        namespace,
        "claims",
        'cat /run/tierline/granted; echo; echo "claim=$TIERLINE_CLAIM"; sleep 600',
        schedulingGates=[{"name": "tierline.io/admission"}],
        resourceClaims=[{"name": "tierline", "resourceClaimTemplateName": template}],
    )
    wanted["spec"]["containers"][0]["resources"] = {"claims": [{"name": "tierline"}]}
    return wanted


def test_a_pod_gets_its_device_by_claim_and_cdi(
    cluster: Running, namespace: str, driver: Driver
) -> None:
    api = cluster.api
    request = {"name": "device", "exactly": {"deviceClassName": DRIVER}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "camera", "namespace": namespace},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    )
    wanted = gated(namespace, "camera")
    api.create(wanted)
    uid = driver.admit(wanted)
    api.wait(wanted, lambda found: phase(found) == "Running")

    logs = api.address(wanted, subresource="log")
    api.wait(wanted, lambda _: "claim=" in api.request("GET", logs))
    said = api.request("GET", logs)
    assert '"consumedCapacity": {"fastMemory": "256Mi"}' in said
    assert f"claim={uid}" in said
    assert driver.prepared == [uid]

    api.delete(wanted)
    api.wait_gone(wanted)
    assert driver.unprepared == [uid]
    assert not driver.cdi_file(uid).exists()
    assert api.list("resource.k8s.io/v1", "ResourceClaim", namespace) == []
