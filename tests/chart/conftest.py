"""A real API server on which nothing of Tierline was installed yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tierline_cluster.build import built
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import KUBERNETES_BUILD


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver alone; what a test installs it removes."""
    plane = ControlPlane(built(KUBERNETES_BUILD), tmp_path_factory.mktemp("bare-server"))
    try:
        yield plane.start()
    finally:
        plane.stop()
