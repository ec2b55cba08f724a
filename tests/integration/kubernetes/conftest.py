"""A cluster's control plane with all that lets pods opt in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from tests.integration.conftest import running
from tests.unit.pods.pod_cases import copied, pod

from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY

POLICIES = REPOSITORY / "charts" / "tierline" / "files" / "admission.yaml"


@pytest.fixture(scope="session")
def opting_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own, with controllers, CRDs and the admission policies at work."""
    for plane in running(tmp_path_factory.mktemp("opting-in"), controllers=True):
        for manifest in yaml.safe_load_all(POLICIES.read_text()):
            plane.api.apply(manifest)
        probe = copied(pod(), "default")

        def at_work() -> bool:
            made = plane.api.create(probe, dry_run=True)  # noqa: B023 - called before the next one
            return "schedulingGates" in made["spec"]

        wait_until("the policies are not at work", at_work, plane.daemons)
        yield plane


@pytest.fixture
def robots(opting_in: ControlPlane) -> str:
    """A fresh namespace of `opting_in` that enforces PodSecurity `restricted`."""
    return opting_in.namespace({"pod-security.kubernetes.io/enforce": "restricted"})


@pytest.fixture
def anything(opting_in: ControlPlane) -> str:
    """A fresh namespace of `opting_in` that admits pods of every kind."""
    return opting_in.namespace()
