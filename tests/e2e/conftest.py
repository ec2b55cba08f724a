"""A whole cluster on this machine for tests: kubelet, containerd, pods that really run.

`make e2e` runs these tests, as root. The cluster lives in build/e2e, so that the next run removes
what a killed one left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from tests.e2e.busybox import BUSYBOX, busybox_image
from tests.e2e.installed import PATIENCE_S, NodeAgent, install, node_agent, sweep, uninstall
from tests.e2e.python_image import python_image
from tests.integration.operator.running import Nursery, Operator, until

from tierline_cluster import cgroups
from tierline_cluster.api import Api, Manifest
from tierline_cluster.build import ProgramFolders, built
from tierline_cluster.cluster import Cluster
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.node import CDI, Node
from tierline_cluster.versions import CONTAINERD_BUILD, KUBERNETES_BUILD, REPOSITORY

FOLDER = REPOSITORY / "build" / "e2e"
_LEFT = (
    ("v1", "Pod"),
    ("tierline.io/v1alpha1", "MemTask"),
    ("tierline.io/v1alpha1", "MemProfile"),
    ("resource.k8s.io/v1", "ResourceClaim"),
)
"""What a test that failed may leave in its namespace, with finalizers."""


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
    whole = Cluster(FOLDER, apart=[CDI])
    with whole.guarded():
        plane, node = whole.up(programs)
        node.import_image(busybox_image().write(node.folder / "busybox.tar"))
        yield Running(plane, node)


@pytest.fixture(scope="module")
def agent(cluster: Running, request: pytest.FixtureRequest) -> Iterator[NodeAgent]:
    """Tierline on the cluster, with the agent of its node at work, and the image PYTHON."""
    cluster.node.import_image(python_image().write(cluster.node.folder / "python.tar"))
    install(cluster.plane)
    made = node_agent(cluster.plane, cluster.node)
    try:
        made.start()
        with _revived(request, made):
            yield made
    finally:
        made.remove()
        uninstall(cluster.plane, cluster.node.name)


@pytest.fixture(scope="module")
def operator(
    cluster: Running,
    agent: NodeAgent,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Operator]:
    """An operator that leads, in addition to the agent."""
    nursery = Nursery(cgroups.entering(cluster.node.group))
    running = Operator(cluster.plane, nursery, tmp_path_factory.mktemp("operator"), "e2e").start()
    try:
        until("the operator leads", running.leads, PATIENCE_S)
        with _revived(request, running):
            yield running
    finally:
        running.stop()
        nursery.close()


_AT_WORK = pytest.StashKey[list[NodeAgent | Operator]]()
"""What runs for all tests of a module."""


@contextmanager
def _revived(request: pytest.FixtureRequest, part: NodeAgent | Operator) -> Iterator[None]:
    """After each test of the block, and before its clean-up, `part` is at work."""
    parts = request.session.stash.setdefault(_AT_WORK, [])
    parts.append(part)
    try:
        yield
    finally:
        parts.remove(part)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test ended that its clean-up, and the next test, ask for."""
    for part in item.session.stash.get(_AT_WORK, []):
        part.revive()


@pytest.fixture
def failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Asked by the clean-up of other fixtures: has this test failed?"""
    before = request.session.testsfailed
    return lambda: request.session.testsfailed > before


@pytest.fixture
def namespace(cluster: Running, failed: Callable[[], bool]) -> Iterator[str]:
    """A fresh namespace; its pods are gone after the test, whatever state that left them in."""
    name = cluster.plane.namespace()
    yield name
    pods = cluster.api.list("v1", "Pod", name)
    for found in pods:
        cluster.api.delete({"apiVersion": "v1", "kind": "Pod", **found}, gracePeriodSeconds=1)
    if failed():
        for api_version, kind in _LEFT:
            sweep(cluster.api, api_version, kind, name)
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
