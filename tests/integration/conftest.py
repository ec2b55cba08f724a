"""Real API servers for tests; they run the programs that `make kubernetes` built.

`api_server` is etcd and kube-apiserver with Tierline's CRDs, ready in some 3 s, without root and
without controllers: nothing acts on objects but the test. `control_plane` is another one with
kube-controller-manager and kube-scheduler, for tests that need what those do (claims made from
templates, owner references, Deployments, scheduling).

The tests of a folder share them, and they end with the last of those: one takes five to ten seconds
of a processor to start, and a tenth of one for as long as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import KUBERNETES_BUILD, REPOSITORY

SPARING = ("env", "GOGC=400")
"""How Go's programs collect garbage less often: there is more memory than there are processors."""


class Shared:
    """Control planes of the tests of one folder."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._made: dict[str, ControlPlane] = {}

    def once(self, name: str, make: Callable[[], Iterator[ControlPlane]]) -> ControlPlane:
        """Return what `make` made when it was first asked for."""
        if name not in self._made:
            self._made[name] = self._ends.enter_context(contextmanager(make)())
        return self._made[name]

    def end(self) -> None:
        """End all of them."""
        self._made.clear()
        self._ends.close()


_SHARED = pytest.StashKey[Shared]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        yield
    finally:
        if nextitem is None or nextitem.path.parent != item.path.parent:
            item.session.stash.setdefault(_SHARED, Shared()).end()


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Shared:
    """What lives as long as the tests of this folder."""
    return request.session.stash.setdefault(_SHARED, Shared())


def running(folder: Path, *, controllers: bool) -> Iterator[ControlPlane]:
    plane = ControlPlane(built(KUBERNETES_BUILD), folder, before=SPARING)
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


@pytest.fixture(scope="module")
def api_server(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """etcd and kube-apiserver with Tierline's CRDs; nothing else acts on objects."""
    name = "api-server"
    return shared.once(name, lambda: running(tmp_path_factory.mktemp(name), controllers=False))


@pytest.fixture(scope="module")
def control_plane(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """The same with kube-controller-manager and kube-scheduler, apart from `api_server`."""
    name = "control-plane"
    return shared.once(name, lambda: running(tmp_path_factory.mktemp(name), controllers=True))


@pytest.fixture
def namespace(api_server: ControlPlane) -> str:
    """A fresh namespace of `api_server` in which pods can be created."""
    return api_server.namespace()
