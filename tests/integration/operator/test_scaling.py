"""What owns what: the replicas of a MemTask, its Deployment, and a task that pods bring along."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from tests.integration.operator.running import User, until
from tests.integration.operator.test_nodes import templated
from tests.integration.operator.test_places import job_named
from tests.unit.placement.fleets import node, profile, task

from tierline_cluster.api import Manifest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
INLINE = {"period": "10s", "budget": "256Mi", "device": "cpu", "profile": "m"}


def replicas_of(user: User, name: str) -> Any:
    """What the Deployment of a task has."""
    return user.api.get(deployment(user, name))["spec"]["replicas"]


def deployment(user: User, name: str) -> Manifest:
    return user.task(name) | {"apiVersion": "apps/v1", "kind": "Deployment"}


def has_pods(user: User, name: str, count: int) -> bool:
    status = user.api.get(user.task(name)).get("status") or {}
    return bool(status.get("replicas") == count and replicas_of(user, name) == count)


def test_a_task_is_scaled_by_hand_and_by_an_autoscaler(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(templated("m"))
    user.wait_task("m", "Admitted")
    until("it has a pod", lambda: has_pods(user, "m", 1))

    user.plane.kubectl("scale", "memtask", "m", "-n", user.namespace, "--replicas=2")
    until("it has two", lambda: has_pods(user, "m", 2))
    scale = user.api.request("GET", user.api.address(user.task("m"), subresource="scale"))
    assert scale["status"] == {"replicas": 2, "selector": "tierline.io/task=m"}

    # Without metrics an autoscaler brings its target to the least that it may have.
    target = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemTask", "name": "m"}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "m", "namespace": user.namespace},
        "spec": {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 4},
    }
    user.api.create(autoscaler)
    try:
        until("it has three", lambda: has_pods(user, "m", 3))
    finally:
        user.api.delete(autoscaler)


def test_a_task_that_makes_no_pods_is_not_scaled(user: User) -> None:
    """It would be answered as if more pods came."""
    user.wait_for_policies()
    user.apply(task("plain", of="m"))
    user.apply(templated("makes"))
    scale = ("scale", "memtask", "-n", user.namespace, "--replicas=3")

    def refusal() -> str:
        """A policy sees its parameters a moment after they are there."""
        try:
            user.plane.kubectl(*scale, "plain")
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        user.api.merge(user.task("plain"), {"spec": {"replicas": 1}})
        return ""

    says = "the MemTask has no template, so that it makes no pods; scale what makes them"
    until("it is refused", lambda: says in refusal())
    assert user.api.get(user.task("plain"))["spec"]["replicas"] == 1
    user.plane.kubectl(*scale, "makes")
    user.api.merge(user.task("plain"), {"spec": {"replicas": 2}})  # places that are kept free


def test_what_others_change_of_the_deployment_is_put_back(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(templated("m"))
    user.wait_task("m", "Admitted")
    until("it has a pod", lambda: has_pods(user, "m", 1))

    user.api.merge(deployment(user, "m"), {"spec": {"replicas": 4, "minReadySeconds": 7}})

    until("it is put back", lambda: replicas_of(user, "m") == 1)
    until("it is told", lambda: "DeploymentPutBack" in dict(user.events("m")))
    # Of what the MemTask does not say, others may say what they want.
    found = user.api.get(deployment(user, "m"))
    assert found["spec"]["minReadySeconds"] == 7
    generation = found["metadata"]["generation"]  # the status changes meanwhile
    user.api.merge(user.task("m"), {"metadata": {"labels": {"look": "again"}}})
    user.wait_task("m", "Admitted")
    assert user.api.get(deployment(user, "m"))["metadata"]["generation"] == generation


def job(user: User, name: str) -> Manifest:
    """A run with pods that bring the task `mine` along."""
    annotations = {f"tierline.io/{key}": value for key, value in INLINE.items()}
    template = {
        "metadata": {"annotations": {"tierline.io/task": "mine", **annotations}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    return user.api.create(job_named(user, name) | {"spec": {"template": template}})


def owners(user: User) -> set[str]:
    """The names of the owners with which the task goes."""
    if not user.api.exists(user.task("mine")):
        return set()
    metadata = user.api.get(user.task("mine"))["metadata"]
    return {owner["name"] for owner in metadata.get("ownerReferences") or ()}


def test_a_task_of_overlapping_runs_goes_with_the_last_of_them(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    first, second = job(user, "first"), job(user, "second")
    until("both own it", lambda: owners(user) == {"first", "second"})

    user.api.delete(first)
    until("the other owns it", lambda: owners(user) == {"second"})
    user.wait_task("mine", "Admitted")

    user.api.delete(second)
    user.api.wait_gone(user.task("mine"))


def test_a_task_of_an_orphaned_run_goes_with_its_pod(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    run = job(user, "run")
    until("the run owns it", lambda: owners(user) == {"run"})
    [pod] = user.api.list("v1", "Pod", user.namespace)
    user.wait_placed(pod["metadata"]["name"])

    user.api.delete(run, propagationPolicy="Orphan")
    until("its pod owns it", lambda: owners(user) == {pod["metadata"]["name"]})

    user.delete_pod(pod["metadata"]["name"])
    user.api.wait_gone(user.task("mine"))
    until("no place is kept", lambda: not user.claims())
