"""Parts of Tierline go away and come back under load: no job is wrong, no pod starts again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from tests.chart.helm import SYSTEM
from tests.e2e.product.release import PATIENCE_S, Release
from tests.e2e.product.tasks import Tasks
from tests.integration.operator.running import until

from tierline_api.objects.optin import GATE
from tierline_cluster.api import Manifest
from tierline_cluster.processes import processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
NEXT = "next"
OPERATOR: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "tierline-operator", "namespace": SYSTEM},
}


@pytest.fixture
def busy(tasks: Tasks) -> Iterator[Tasks]:
    """Two tasks at work; at the end their pods are the same, and never started again."""
    for name in ("camera", "lidar"):
        tasks.apply_with_pods(name)
    before = {}
    for name in ("camera", "lidar"):
        before[name] = tasks.wait_running(name)["metadata"]["uid"]
        tasks.wait_jobs(name, more=1)
    yield tasks
    for name, uid in before.items():
        tasks.wait_jobs(name)
        (pod,) = tasks.pods(name)
        assert pod["metadata"]["uid"] == uid
        assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]


def restarts(pod: Manifest) -> int:
    (status,) = pod["status"]["containerStatuses"]
    return int(status["restartCount"])


def test_the_agent_is_killed(release: Release, busy: Tasks) -> None:
    before = release.agent
    (process,) = processes_of("tierline_agent", release.cluster.node.group)
    os.kill(process, signal.SIGKILL)
    until("it starts again", lambda: restarts(release.agent) > restarts(before), PATIENCE_S)
    release.wait_ready()


@pytest.mark.parametrize("hand_over", [False, True], ids=["after its end", "handed over"])
def test_operator_and_agent_are_upgraded(release: Release, busy: Tasks, *, hand_over: bool) -> None:
    tag = f"{NEXT}-{hand_over}".lower()
    before = {pod["metadata"]["uid"] for pod in release.pods()}
    values = release.values
    for part in ("operator", "agent"):
        name = f"localhost/tierline-{part}"
        copied = ("images", "tag", "--force", f"{name}:{version('tierline')}", f"{name}:{tag}")
        release.cluster.node.ctr(*copied)
        values[part]["image"]["tag"] = tag
    values["agent"]["handOver"] = hand_over
    release.upgrade(values)

    def replaced() -> bool:
        return not before & {pod["metadata"]["uid"] for pod in release.pods()}

    until("all pods are replaced", replaced, PATIENCE_S)
    release.wait_ready()
    images = {pod["spec"]["containers"][0]["image"].split(":")[1] for pod in release.pods()}
    assert images == {tag}
    assert ("standing by until" in release.logs()) == hand_over


def test_the_operator_is_away(release: Release, busy: Tasks) -> None:
    api = release.api
    replicas = api.get(OPERATOR)["spec"]["replicas"]
    api.merge(OPERATOR, {"spec": {"replicas": 0}})
    until("operators are left", lambda: not release.operators(), PATIENCE_S)

    busy.apply("late")
    busy.deployment("annotated", "late")
    busy.deployment("plain", None)
    busy.wait_running("plain")
    (waiting,) = until("the pod is there", lambda: busy.pods("annotated"), PATIENCE_S)
    assert waiting["spec"]["schedulingGates"] == [{"name": GATE}]

    api.merge(OPERATOR, {"spec": {"replicas": replicas}})
    release.wait_ready()
    busy.wait_running("annotated")
    busy.wait_jobs("annotated")
