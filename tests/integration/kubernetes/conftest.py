"""A cluster's control plane with all that lets pods opt in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.conftest import Shared
from tests.integration.policies import apply_policies

from tierline_cluster.control_plane import ControlPlane


@pytest.fixture(scope="module")
def opting_in(shared: Shared, control_plane: ControlPlane) -> ControlPlane:
    """A control plane with controllers, CRDs and the admission policies at work."""
    return shared.once("opting-in", lambda: _opting_in(control_plane))


def _opting_in(plane: ControlPlane) -> Iterator[ControlPlane]:
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
