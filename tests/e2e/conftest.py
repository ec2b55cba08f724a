"""A whole cluster on this machine for tests: kubelet, containerd, pods that really run.

`make e2e` runs these tests, as root. The cluster lives in build/e2e, so that the next run removes
what a killed one left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.e2e.busybox import BUSYBOX, busybox_image
from tests.e2e.installed import PATIENCE_S, NodeAgent, install, node_agent, uninstall
from tests.e2e.python_image import python_image
from tests.integration.operator.running import Nursery, Operator, until

from tierline_cluster.api import Api, Manifest
from tierline_cluster.build import ProgramFolders, built
from tierline_cluster.cluster import Cluster
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.node import Node
from tierline_cluster.versions import CONTAINERD_BUILD, KUBERNETES_BUILD, REPOSITORY

FOLDER = REPOSITORY / "build" / "e2e"


class Running(NamedTuple):
    """A cluster that is up."""

    plane: ControlPlane
    node: Node

    @property
    def api(self) -> Api:
        """The administrator's view."""
        return self.plane.api


@pytest.fixture(scope="session")
def programs() -> ProgramFolders:
    return ProgramFolders(built(KUBERNETES_BUILD), built(CONTAINERD_BUILD))


@pytest.fixture(scope="session")
def cluster(programs: ProgramFolders) -> Iterator[Running]:
    """A cluster with one node, which knows the image BUSYBOX."""
    whole = Cluster(FOLDER)
    try:
        plane, node = whole.up(programs)
        node.import_image(busybox_image().write(node.folder / "busybox.tar"))
        yield Running(plane, node)
    finally:
        whole.down(keep_logs=True)


@pytest.fixture(scope="module")
def agent(cluster: Running) -> Iterator[NodeAgent]:
    """Tierline on the cluster, with the agent of its node at work, and the image PYTHON."""
    cluster.node.import_image(python_image().write(cluster.node.folder / "python.tar"))
    install(cluster.plane)
    made = node_agent(cluster.plane, cluster.node)
    try:
        made.start()
        yield made
    finally:
        made.remove()
        uninstall(cluster.plane, cluster.node.name)


@pytest.fixture(scope="module")
def operator(
    cluster: Running, agent: NodeAgent, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator that leads, in addition to the agent."""
    nursery = Nursery()
    running = Operator(cluster.plane, nursery, tmp_path_factory.mktemp("operator"), "e2e").start()
    try:
        until("the operator leads", running.leads, PATIENCE_S)
        yield running
    finally:
        running.stop()
        nursery.close()


@pytest.fixture
def namespace(cluster: Running) -> Iterator[str]:
    """A fresh namespace; its pods are gone after the test."""
    name = cluster.plane.namespace()
    yield name
    pods = cluster.api.list("v1", "Pod", name)
    for found in pods:
        cluster.api.delete({"apiVersion": "v1", "kind": "Pod", **found}, gracePeriodSeconds=1)
    for found in pods:
        cluster.api.wait_gone({"apiVersion": "v1", "kind": "Pod", **found})
    # The rest takes the namespace controller some seconds, for which nobody waits.
    cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def pod(namespace: str, name: str, script: str, **spec: object) -> Manifest:
    """Return a pod with one container, called `app`, that runs `script`."""
    container = {
        "name": "app",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def phase(found: Manifest) -> str:
    """Return a pod's phase."""
    return str(found["status"].get("phase", ""))
