"""Whether a task is ready: its pods run, so many as it asks for, and as it asks for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.test_objects import NOW, body, pod
from tests.unit.placement.fleets import fleet, node, profile, said, task

from tierline_api.objects.conditions import Condition, ConditionType, find
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.memtask_status import Phase
from tierline_kube.resource import MEMTASK
from tierline_operator.cluster.decode import KnownPod, pod_of
from tierline_operator.cluster.state import View, is_unready
from tierline_operator.controller.status import status_of
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet

M = TaskKey("default", "m")


def templated(replicas: int) -> MemTask:
    """A task that has its pods made."""
    manifest = task("m", replicas=replicas).to_api()
    manifest["spec"]["template"] = {"spec": {"containers": [{"name": "c"}]}}
    return MemTask.from_api(manifest)


def ready_pods(count: int) -> list[KnownPod]:
    """Pods that run."""
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [pod_of({**pod(), "status": status}) for _ in range(count)]


def told(made: MemTask, pods: int = 0, **more: Any) -> tuple[MemTask, Condition]:
    """The task with its status, and what is said of it."""
    of = fleet(node("a"), profile("m"), made)
    verdict = of.verdict(M)
    assert verdict is not None
    status = status_of(made, verdict, ready_pods(pods), [], NOW, **more)
    ready = find(status.conditions, ConditionType.READY)
    assert ready is not None
    return made.model_copy(update={"status": status}), ready


@pytest.mark.parametrize("made", [templated(0), task("m", replicas=0)], ids=["makes", "plain"])
@pytest.mark.parametrize("stalled_s", [None, 60.0])
def test_a_task_that_wants_no_pod_is_never_stalled(made: MemTask, stalled_s: float | None) -> None:
    shown, ready = told(made, stalled_s=stalled_s, silent="node a is silent")

    assert (ready.status, ready.reason) == ("False", "NoReplicas")
    assert ready.message == "replicas is 0: no pod of the task is to be there"
    assert not is_unready(shown)
    assert shown.status is not None
    assert shown.status.phase == Phase.ADMITTED


def test_a_task_that_wanted_no_pod_and_wants_one_may_stall() -> None:
    shown, ready = told(templated(1), stalled_s=60.0)
    assert (ready.status, ready.reason) == ("False", "Stalled")
    assert is_unready(shown)


def test_a_task_is_ready_with_as_many_pods_as_it_wants() -> None:
    _, ready = told(templated(2), 1)
    assert (ready.status, ready.reason) == ("False", "Starting")
    assert ready.message == "1 of 2 pods are ready"
    _, ready = told(templated(2), 1, failure="exceeded quota: q")
    assert (ready.status, ready.reason) == ("False", "ReplicaFailure")
    assert ready.message == "1 of 2 pods are ready; exceeded quota: q"
    _, ready = told(templated(2), 2, failure="exceeded quota: q")
    assert (ready.status, ready.reason) == ("True", "Running")
    # of a task without a template others say how many there are
    _, ready = told(task("m", replicas=2), 1)
    assert (ready.status, ready.message) == ("True", "1 of 1 pods are ready")


def test_a_task_whose_deployment_is_not_as_it_asks_is_not_ready() -> None:
    shown, ready = told(templated(1), 1, hindered="Deployment/m is refused", unmade=True)
    assert (ready.status, ready.reason) == ("False", "ReplicaFailure")
    assert ready.message == "1 of 1 pods are ready; Deployment/m is refused"
    assert is_unready(shown)
    # what is refused of the annotations of a pod says nothing of those that run
    _, ready = told(templated(1), 1, hindered="pod p: the annotation is wrong")
    assert ready.status == "True"
    _, ready = told(templated(0), hindered="Deployment/m is refused", unmade=True)
    assert ready.reason == "ReplicaFailure"


def test_a_task_that_others_hold_names_their_finalizers() -> None:
    held = task("m", leaving=True)
    finalizers = ("tierline.io/admission", "example.com/a", "example.com/b")
    named = held.metadata.model_copy(update={"finalizers": finalizers})
    held = held.model_copy(update={"metadata": named})

    made = fleet(node("a"), profile("m"), held)
    _, reason, message = said(made, "m")
    assert reason == "BeingDeleted"
    others = "others hold it by finalizers, and have to let it go: example.com/a, example.com/b"
    assert message == f"is being deleted; nothing runs any more; {others}"


def test_what_is_stalled_is_counted_no_more_when_it_wants_no_pod() -> None:
    """Also after a restart, of a task that an earlier release called stalled."""
    shown, _ = told(templated(1), stalled_s=60.0)
    view = View(Fleet())
    whole = {**shown.to_api(), "apiVersion": MEMTASK.group_version, "kind": MEMTASK.kind}
    view.take(MEMTASK, whole | body("m", 2, metadata={"generation": 1}))
    view.turn(NOW, 60.0)
    assert view.stalled.over == {M}

    shown, _ = told(templated(0), stalled_s=60.0)
    whole |= shown.to_api()
    view.take(MEMTASK, whole | body("m", 3, metadata={"generation": 2}))
    view.turn(NOW, 60.0)
    assert not view.stalled.over
