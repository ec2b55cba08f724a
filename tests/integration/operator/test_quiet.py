"""A normal life warns of nothing, and says little: one event for what happens, and no more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.integration.operator.running import (
    ALONE,
    Nursery,
    Operator,
    User,
    conditions,
    placed,
    until,
)
from tests.integration.operator.test_nodes import templated
from tests.integration.operator.test_places import job_named
from tests.unit.placement.fleets import node, profile, task

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
MOST: Final = {"m": 14, "once": 10, "pod": 2}
"""Events about the MemTasks, and about each pod."""
OFTEN: Final = 5
"""So often at most the same is said: all pods are ready, once scaled, and after each of the two
that are rolled and of the two that are drained, as far as the operator sees these apart."""


@pytest.fixture
def operator(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """One that keeps places free for seconds, so that a life ends within a test."""
    settings = {**ALONE, "KEEP_FREE_S": "3"}
    running = Operator(prepared, nursery, tmp_path, "hasty", settings).start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        running.stop()


@pytest.fixture
def kubelet(user: User) -> Iterator[None]:
    """Starts pods that are bound to a node, and ends those that are deleted."""
    ended = threading.Event()

    def turn(pod: Manifest) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            user.api.delete(pod, gracePeriodSeconds=0)
        elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
            ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
            user.api.merge(pod, {"status": ready}, subresource="status")

    def live() -> None:
        while not ended.wait(0.2):
            for pod in pods(user):
                try:
                    turn(pod)
                except ApiError:
                    continue  # it has gone meanwhile

    thread = threading.Thread(target=live)
    thread.start()
    yield
    ended.set()
    thread.join()


def pods(user: User) -> list[Manifest]:
    found = user.api.list("v1", "Pod", user.namespace)
    return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]


def running_on(user: User) -> Counter[str]:
    """How many pods run on each node."""
    return Counter(
        pod["spec"]["nodeName"]
        for pod in pods(user)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    )


@pytest.mark.usefixtures("kubelet")
def test_a_normal_life_warns_of_nothing(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.worker("node-a", pods=110)
    user.apply(profile("m"))
    # create, place, run
    user.apply(templated("m"))
    user.wait_task("m", "Running", "Ready")
    user.plane.kubectl("scale", "memtask", "m", "-n", user.namespace, "--replicas=2")
    until("both run", lambda: running_on(user)["node-a"] == 2)
    # roll
    before = {pod["metadata"]["uid"] for pod in pods(user)}
    user.apply(templated("m", terminationGracePeriodSeconds=1))
    user.plane.kubectl("scale", "memtask", "m", "-n", user.namespace, "--replicas=2")
    until(
        "others run",
        lambda: (
            running_on(user)["node-a"] == 2
            and before.isdisjoint(pod["metadata"]["uid"] for pod in pods(user))
        ),
    )
    # drain, to a node that comes
    user.node(node("node-b"))
    user.worker("node-b", pods=110)
    user.worker("node-a", pods=110, unschedulable=True)
    for pod in pods(user):
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": pod["metadata"]}
        user.api.request("POST", user.api.address(pod, subresource="eviction"), eviction)
    until("they run elsewhere", lambda: running_on(user) == {"node-b": 2})
    # a Job, from its pod to its end, and until its place is given up
    user.apply(task("once", of="m"))
    annotations = {"tierline.io/task": "once"}
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    user.api.create(job_named(user, "run") | {"spec": {"template": template}})
    until("it runs", lambda: running_on(user)["node-b"] == 3)
    [pod] = user.api.list("v1", "Pod", user.namespace, labelSelector="job-name=run")
    done = {"status": {"phase": "Succeeded"}}
    user.api.merge(user.named_pod(pod["metadata"]["name"]), done, subresource="status")
    user.wait_task("once", "NoPods")
    # delete
    user.api.delete(job_named(user, "run"))
    for name in ("m", "once"):
        user.api.delete(user.task(name))
    for name in ("m", "once"):
        user.api.wait_gone(user.task(name))
    until("nothing is left", lambda: not pods(user) and not any(map(placed, user.claims())))

    found = user.api.list("events.k8s.io/v1", "Event", user.namespace)
    ours = [one for one in found if one.get("reportingController") == "tierline.io/operator"]
    told = [f"{one['regarding']['name']} {one['reason']}: {one['note']}" for one in ours]
    assert [line for one, line in zip(ours, told, strict=True) if one["type"] == "Warning"] == []
    about = Counter(one["regarding"]["name"] for one in ours)
    for name, count in about.items():
        assert count <= MOST.get(name, MOST["pod"]), "\n".join(told)
    series = Counter((one["regarding"]["uid"], one["reason"], one["note"]) for one in ours)
    assert max(series.values()) <= OFTEN, "\n".join(told)


def test_a_namespace_that_is_deleted_is_quiet(user: User, operator: Operator) -> None:
    """Nothing new can be made in it: neither what its tasks lack meanwhile, nor an event."""
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    for name in ("a", "b", "c"):
        user.apply(templated(name))
    until("all are placed", lambda: sum(map(bool, map(placed, user.claims()))) == 3)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": user.namespace}}
    user.api.delete(namespace)
    user.api.wait_gone(namespace)

    lines = operator.log.read_text().splitlines()
    loud = [line for line in lines if "WARNING" in line and user.namespace in line]
    assert loud == []


def test_a_task_that_others_hold_says_by_which_finalizers(user: User) -> None:
    user.apply(task("m"))
    held = user.task("m")
    user.api.merge(held, {"metadata": {"finalizers": ["example.com/holds"]}})
    user.api.delete(held)
    found = user.wait_task("m", "BeingDeleted")
    message = conditions(found)["Admitted"]["message"]
    assert message.endswith(
        "others hold it by finalizers, and have to let it go: example.com/holds"
    )
    user.api.merge(held, {"metadata": {"finalizers": None}})
    user.api.wait_gone(held)
