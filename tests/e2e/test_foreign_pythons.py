"""Pods whose images have other Pythons and PyTorches than the product was made with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests import matrix
from tests.e2e.conftest import Running
from tests.e2e.installed import PATIENCE_S, NodeAgent
from tests.e2e.test_agent import forget, memprofile, memtask, more_jobs
from tests.e2e.torch_pod import torch_pod
from tests.integration.operator.running import Operator, until

from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # also on a busy machine
ASIDE = "this program runs without Tierline"


@pytest.fixture
def camera(
    request: pytest.FixtureRequest,
    cluster: Running,
    operator: Operator,
    agent: NodeAgent,
    namespace: str,
) -> Iterator[Manifest]:
    """A pod of an ordinary program in the cell that a test names; the task has no profile yet."""
    cell: matrix.Cell = request.param
    wanted = torch_pod(cluster, namespace, "camera", cell, "torch_program.py")
    cluster.api.create(memtask(namespace, "camera"))
    cluster.api.create(wanted)
    yield wanted
    cluster.api.delete(wanted, gracePeriodSeconds=1)
    cluster.api.wait_gone(wanted, PATIENCE_S)
    forget(cluster, namespace)
    until("traces are left", lambda: not agent.traces(), PATIENCE_S)


def told(cluster: Running, running: Manifest) -> str:
    """What a pod has said; it starts again once it is measured."""
    (status,) = cluster.api.get(running)["status"].get("containerStatuses") or [{}]
    if "running" not in (status.get("state") or {}):
        return ""
    said: str = cluster.api.request("GET", cluster.api.address(running, subresource="log"))
    return said


@pytest.mark.parametrize("camera", [matrix.Cell("3.10", "2.6")], ids=str, indirect=True)
def test_the_oldest_python_and_pytorch_without_numpy_stream(
    cluster: Running, namespace: str, camera: Manifest
) -> None:
    made = cluster.api.wait(memprofile(namespace, "camera"), lambda _: True, PATIENCE_S)
    assert len([layer for layer in made["spec"]["layers"] if layer["bytes"]]) == 12

    def streamed(found: Manifest) -> int:
        seen: dict[str, Any] = (found.get("status") or {}).get("observed") or {}
        return int(seen.get("streamedBytesPerJob", 0))

    cluster.api.wait(memtask(namespace, "camera"), lambda found: streamed(found) > 0, PATIENCE_S)
    more_jobs(cluster, camera)
    assert "python 3.10 numpy None" in told(cluster, camera)


@pytest.mark.parametrize(
    ("camera", "sentence"),
    [
        (matrix.Cell("3.9", "2.6"), "a program of Python 3.9 cannot be managed"),
        (matrix.Cell("3.10", "2.5"), "a program of PyTorch 2.5"),
    ],
    ids=str,
    indirect=["camera"],
)
def test_others_run_without_tierline_and_say_so(
    cluster: Running, camera: Manifest, sentence: str
) -> None:
    until("it does not run", lambda: told(cluster, camera).count("right") >= 3, PATIENCE_S)
    said = told(cluster, camera)
    assert "WRONG" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("tierline: "))
    assert sentence in line
    assert line.endswith(ASIDE)
