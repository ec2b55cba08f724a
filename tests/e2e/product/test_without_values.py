"""The line that `make cluster` prints, word by word; after the last test of the other release."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.e2e.conftest import Running
from tests.e2e.product.release import PATIENCE_S, Release
from tests.e2e.product.tasks import DEFAULT_EXTENT_BYTES, Tasks

from tierline_cluster.__main__ import helm_install
from tierline_cluster.build import built
from tierline_cluster.versions import HELM_BUILD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_the_line_that_is_printed_leads_to_a_task_that_is_ready(
    release: Release, cluster: Running, namespace: str
) -> None:
    release.uninstall()
    path = f"{built(HELM_BUILD)}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-ec", helm_install(cluster.node.kubelet_root)],
        env=os.environ | {"KUBECONFIG": str(cluster.plane.kubeconfig), "PATH": path},
        check=True,
    )
    try:
        release.wait_ready()
        tasks = Tasks(release, namespace, DEFAULT_EXTENT_BYTES)
        tasks.apply_with_pods("camera")
        tasks.wait("camera", Ready="Running")
        tasks.wait_jobs("camera")
        node = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemNode"}
        release.api.wait(
            node | {"metadata": {"name": cluster.node.name}},
            lambda found: (
                {("Ready", "True")}
                <= {(c["type"], c["status"]) for c in found["status"]["conditions"]}
            ),
            PATIENCE_S,
        )
        tasks.remove_all()
    finally:
        release.uninstall()
