"""The models of examples/1-quickstart in pods: measured on the cluster, admitted, on time.

The pods are those of the manifest that a newcomer applies, with an image of this machine's Python.
PyTorch and the models' program are mounted from this machine: an image of them would hold
gigabytes. Periods are long, since the machine may be slow and busy; nothing here is about speed.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import yaml
from tests.e2e.product.release import DRAM, Release
from tests.e2e.product.tasks import API, Tasks
from tests.e2e.python_image import PYTHON

from tierline_cluster.api import Manifest
from tierline_cluster.versions import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
EXAMPLES: Final = REPOSITORY / "examples"
PATIENCE_S: Final = 600
FAST_BYTES: Final = 256 << 20
"""Less than a third of the models' weights."""
VOLUMES: Final = {"/packages": sysconfig.get_path("purelib"), "/examples": str(EXAMPLES)}
PERIOD: Final = "120s"
"""The first job is released when its pod is ready, so nobody waits for this. What the machine holds
up while a model is measured is what the model is admitted with, and three of them must fit."""


@pytest.fixture
def roomy(release: Release) -> Release:
    """The release with memory for models, as an upgrade gives it.

    It keeps that: of this folder's tests only that of uninstalling follows.
    """
    values = release.values
    pool = values["agent"]["pools"]["default"]
    pool["devices"]["cpu"]["fastMemory"] = f"{FAST_BYTES >> 20}Mi"
    pool["tiers"]["dram"] = {"path": DRAM, "size": "1Gi"}
    release.upgrade(values)
    node = {"apiVersion": API, "kind": "MemNode", "metadata": {"name": release.cluster.node.name}}

    def resized(found: Manifest) -> bool:
        (device,), (tier,) = found["status"]["devices"], found["status"]["tiers"]
        return bool(device["fastBytes"] == FAST_BYTES and tier["capacityBytes"] > 1000 << 20)

    release.api.wait(node, resized, PATIENCE_S)
    release.wait_ready()
    return release


@pytest.fixture
def models(roomy: Release, namespace: str, failed: Callable[[], bool]) -> Iterator[Tasks]:
    """A namespace that lets pods mount folders of the node."""
    tasks = Tasks(roomy, namespace)
    yield tasks
    if failed():
        print(tasks.describe(), roomy.logs(), sep="\n")
    tasks.remove_all()


def here(manifest: Manifest, namespace: str) -> Manifest:
    """Return a task of the example for this cluster."""
    manifest["metadata"]["namespace"] = namespace
    spec: dict[str, Any] = manifest["spec"]
    spec |= {"realtime": {"period": PERIOD}, "swap": {"tiers": ["dram"]}}
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 1
    pod["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own
    for path, folder in VOLUMES.items():
        name = path.removeprefix("/")
        pod["volumes"].append({"name": name, "hostPath": {"path": folder, "type": "Directory"}})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    (container,) = pod["containers"]
    container |= {
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "volumeMounts": mounts,
        "env": [
            {"name": "PYTHONPATH", "value": ":".join(VOLUMES)},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
        ],
    }
    return manifest


def test_example_models_are_measured_on_the_cluster_and_hold_their_deadlines(models: Tasks) -> None:
    found = yaml.safe_load_all((EXAMPLES / "1-quickstart" / "tasks.yaml").read_text())
    manifests = [here(one, models.namespace) for one in found if one["kind"] == "MemTask"]
    names = [manifest["metadata"]["name"] for manifest in manifests]
    # As a newcomer does: all at once. The cluster has one device, on which each is measured alone.
    for manifest in manifests:
        models.api.apply(manifest)
    for name in names:
        models.wait(name, within_s=PATIENCE_S, Profiled="ProfileFound")
    weights = streamed = 0
    for name in names:
        status = models.wait(name, within_s=PATIENCE_S, Ready="Running", DeadlinesMet="NoMisses")[
            "status"
        ]
        assert status["phase"] == "Running", status["conditions"]
        assert status["node"] == models.release.cluster.node.name
        streamed += status["observed"]["streamedBytesPerJob"]
        weights += sum(tier["bytes"] for tier in status["tiers"])
    assert len(names) == 3
    assert weights > 3 * FAST_BYTES
    assert streamed > weights - FAST_BYTES
