"""Real API servers for tests; they run the programs that `make kubernetes` built.

`api_server` is etcd and kube-apiserver with Tierline's CRDs, ready in some 3 s, without root and
without controllers: nothing acts on objects but the test. `control_plane` is another one with
kube-controller-manager and kube-scheduler, for tests that need what those do (claims made from
templates, owner references, Deployments, scheduling).
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import KUBERNETES_BUILD, REPOSITORY


def running(folder: Path, *, controllers: bool) -> Iterator[ControlPlane]:
    plane = ControlPlane(built(KUBERNETES_BUILD), folder)
    try:
        plane.start()
        if controllers:
            # Nodes of tests have no kubelet, so no signs of life to wait for.
            plane.start_controllers(without=["node-lifecycle-controller"])
        install_crds(plane)
        yield plane
    finally:
        plane.stop()


def install_crds(plane: ControlPlane, folder: Path = REPOSITORY / "crds") -> None:
    """Install the CRDs in `folder`, Tierline's own, and wait until they serve."""
    crds = [yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")]
    for crd in crds:
        plane.api.apply(crd)
    for crd in crds:
        plane.api.wait(crd, lambda found: condition(found, "Established") == "True")
    # The server says so before its discovery and its handlers have heard of it.
    wait_until(
        "the CRDs are not served", lambda: all(served(plane, crd) for crd in crds), plane.daemons
    )


def served(plane: ControlPlane, crd: Manifest) -> bool:
    """Say whether the server answers for every version of a CRD's kind."""
    spec = crd["spec"]
    try:
        for version in spec["versions"]:
            plane.api.list(f"{spec['group']}/{version['name']}", spec["names"]["kind"])
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def condition(found: dict[str, object], name: str) -> str:
    """Return the status of an object's condition, "" if it has none."""
    status = found.get("status")
    conditions = (status.get("conditions") or []) if isinstance(status, dict) else []
    return next((c["status"] for c in conditions if c["type"] == name), "")


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver with Tierline's CRDs; nothing else acts on objects."""
    yield from running(tmp_path_factory.mktemp("api-server"), controllers=False)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The same with kube-controller-manager and kube-scheduler, apart from `api_server`."""
    yield from running(tmp_path_factory.mktemp("control-plane"), controllers=True)


@pytest.fixture
def namespace(api_server: ControlPlane) -> str:
    """A fresh namespace of `api_server` in which pods can be created."""
    return api_server.namespace()
