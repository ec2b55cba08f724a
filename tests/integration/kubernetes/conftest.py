"""A cluster's control plane with all that lets pods opt in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.conftest import running
from tests.integration.policies import apply_policies

from tierline_cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def opting_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own, with controllers, CRDs and the admission policies at work."""
    for plane in running(tmp_path_factory.mktemp("opting-in"), controllers=True):
        apply_policies(plane)
        yield plane


@pytest.fixture
def robots(opting_in: ControlPlane) -> str:
    """A fresh namespace of `opting_in` that enforces PodSecurity `restricted`."""
    return opting_in.namespace({"pod-security.kubernetes.io/enforce": "restricted"})


@pytest.fixture
def anything(opting_in: ControlPlane) -> str:
    """A fresh namespace of `opting_in` that admits pods of every kind."""
    return opting_in.namespace()
