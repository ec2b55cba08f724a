"""Places come back from tasks without pods, and a task that never becomes ready says so."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.operator.running import (
    ALONE,
    Nursery,
    Operator,
    User,
    conditions,
    until,
)
from tests.integration.operator.test_telling import kubectl
from tests.integration.operator.test_watching import known_tasks
from tests.unit.placement.fleets import node, profile, task

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.swap import SwapPolicy
from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
WAITS = {"KEEP_FREE_S": "4", "STALLED_AFTER_S": "6"}


@pytest.fixture
def operator(prepared: ControlPlane, nursery: Nursery, tmp_path: Path) -> Iterator[Operator]:
    """One that waits seconds where others wait minutes."""
    settings = {**ALONE, **WAITS, "METRICS_PORT": str(free_port())}
    running = Operator(prepared, nursery, tmp_path, "hasty", settings).start()
    try:
        until("the operator leads", running.leads)
        yield running
    finally:
        running.stop()


def room_for_one(user: User) -> None:
    """A device that holds one model, and no two."""
    user.node(node("node-a", fast_mib=100))
    user.apply(profile("m"))


def whole(name: str, **more: Any) -> MemTask:
    """A task that wants all weights in fast memory."""
    return task(name, of="m", policy=SwapPolicy.RESIDENT, **more)


def templated(name: str) -> MemTask:
    """The same with a template."""
    manifest = whole(name).to_api()
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]}
    manifest["spec"]["template"] = {"spec": spec}
    return MemTask.from_api(manifest)


def limit_pods(user: User, pods: int) -> Manifest:
    """A ResourceQuota."""
    metadata = {"name": "q", "namespace": user.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    made: Manifest = user.api.apply(quota | {"spec": {"hard": {"pods": str(pods)}}})
    user.api.wait(quota, lambda q: (q.get("status") or {}).get("hard") == {"pods": str(pods)})
    return made


def test_a_place_whose_pods_a_quota_forbids_is_given_to_others(user: User) -> None:
    room_for_one(user)
    limit_pods(user, 0)
    user.apply(templated("hoard"))
    user.wait_task("hoard", "ReplicaFailure", "Ready")
    said = conditions(user.api.get(user.task("hoard")))["Ready"]["message"]
    assert "exceeded quota: q" in said
    user.apply(whole("victim"))

    user.wait_task("hoard", "NoPods")
    user.wait_task("victim", "Admitted")
    told = kubectl(user.plane, "tierline", "why-pending", "hoard", "-n", user.namespace)
    assert "  why:        its place was given up" in told
    assert "  ready:      no pod of the task is there: " in told
    assert "exceeded quota: q" in told
    assert "  what helps: mend what forbids its pods" in told

    user.api.delete(user.task("victim"))
    limit_pods(user, 5)
    deployment = user.task("hoard") | {"apiVersion": "apps/v1", "kind": "Deployment"}
    # As a Deployment does by itself, after its pause between two tries.
    user.api.merge(deployment, {"metadata": {"annotations": {"again": "now"}}})
    user.api.merge(deployment, {"spec": {"template": {"metadata": {"labels": {"again": "1"}}}}})
    until("its pod is placed", lambda: any(map(is_placed, user.claims())))


def is_placed(claim: Manifest) -> bool:
    return "allocation" in (claim.get("status") or {})


def test_a_finished_job_gives_its_place_back_and_the_next_run_asks_again(user: User) -> None:
    user.wait_for_policies()
    room_for_one(user)
    job(user, "first")
    finish(user, "first")
    user.api.delete(job_named(user, "first"), propagationPolicy="Orphan")
    user.apply(whole("victim"))

    user.wait_task("done", "NoPods")
    user.wait_task("victim", "Admitted")
    user.api.delete(user.task("victim"))
    job(user, "second")
    finish(user, "second")


def job_named(user: User, name: str) -> Manifest:
    metadata = {"name": name, "namespace": user.namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}


def job(user: User, name: str) -> None:
    """A run of a Job with pods that bring the task `done` along."""
    if not user.api.exists(user.task("done")):
        user.apply(whole("done"))
    annotations = {"tierline.io/task": "done"}
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    user.api.create(job_named(user, name) | {"spec": {"template": template}})


def finish(user: User, name: str) -> None:
    """Be the kubelet of the pod of a Job, once it has its place."""
    until(f"{name} has its place", lambda: any(map(is_placed, user.claims())))
    [pod] = user.api.list("v1", "Pod", user.namespace, labelSelector=f"job-name={name}")
    succeeded = {"status": {"phase": "Succeeded"}}
    user.api.merge(user.named_pod(pod["metadata"]["name"]), succeeded, subresource="status")
    until("its claim is gone", lambda: not user.claims())


def test_who_is_admitted_and_never_ready_is_stalled(user: User, operator: Operator) -> None:
    room_for_one(user)
    user.apply(whole("m"))
    user.pod("p", "m")
    user.wait_placed("p")
    waiting: Manifest = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    waiting |= {"ready": False, "restartCount": 0, "image": "none", "imageID": ""}
    status = {"status": {"containerStatuses": [waiting]}}
    user.api.merge(user.named_pod("p"), status, subresource="status")

    found = user.wait_task("m", "Stalled", "Ready")
    for_so_long, _, why = conditions(found)["Ready"]["message"].partition(": ")
    assert re.fullmatch(r"has been admitted for \d\.\d min without being ready", for_so_long)
    assert why == "0 of 1 pods are ready; pod p: ImagePullBackOff"
    until("the event", lambda: "Stalled" in dict(user.events("m")))
    until("the metric", lambda: gauge(operator, "tierline_operator_stalled_tasks") == 1)
    assert known_tasks(operator) == 1


def test_a_task_that_wants_no_pods_waits_for_nothing(user: User, operator: Operator) -> None:
    room_for_one(user)
    none = templated("none").to_api()
    none["spec"]["replicas"] = 0
    user.apply(MemTask.from_api(none))
    user.apply(templated("scaled"))
    until("its pod is placed", lambda: any(map(is_placed, user.claims())))
    user.plane.kubectl("scale", "memtask", "scaled", "-n", user.namespace, "--replicas=0")
    user.wait_task("scaled", "NoReplicas", "Ready")
    user.apply(whole("late"))
    user.pod("p", "late")
    user.wait_task("late", "Stalled", "Ready")

    for name in ("none", "scaled"):
        found = conditions(user.api.get(user.task(name)))
        assert (found["Admitted"]["status"], found["Ready"]["reason"]) == ("True", "NoReplicas")
        assert "Stalled" not in dict(user.events(name))
    until("the metric", lambda: gauge(operator, "tierline_operator_stalled_tasks") == 1)
    told = kubectl(user.plane, "tierline", "why-pending", "-n", user.namespace)
    assert "admitted, but not running: 1" in told
    asked = ("tierline", "why-pending", "scaled", "-n", user.namespace)
    assert "/scaled does not wait: replicas is 0" in kubectl(user.plane, *asked)


def said(user: User, name: str, kind: str) -> str:
    """The sentence of a condition."""
    message: str = conditions(user.api.get(user.task(name)))[kind]["message"]
    return message


def test_a_template_that_is_refused_is_told_as_long_as_it_is(user: User) -> None:
    """An event would be gone after an hour."""
    room_for_one(user)
    wrong = templated("m").to_api()
    wrong["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    user.apply(MemTask.from_api(wrong))

    user.wait_task("m", "ReplicaFailure", "Ready")
    user.wait_task("m", "NoPods")
    for kind in ("Ready", "Admitted"):
        assert "Deployment/m is refused; correct the MemTask's template" in said(user, "m", kind)
        assert 'Unsupported value: "Never"' in said(user, "m", kind)

    user.apply(templated("m"))
    until("its pod is placed", lambda: any(map(is_placed, user.claims())))
    user.wait_task("m", "Starting", "Ready")
    until("it is over", lambda: "refused" not in said(user, "m", "Ready"))


def test_a_name_that_is_taken_is_told_as_long_as_it_is(user: User) -> None:
    room_for_one(user)
    claims = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    taken = claims | {"metadata": {"name": "m", "namespace": user.namespace}}
    request = {"name": "device", "exactly": {"deviceClassName": "tierline.io"}}
    user.api.create(taken | {"spec": {"spec": {"devices": {"requests": [request]}}}})
    user.apply(whole("m"))
    user.pod("early", "m")

    user.wait_task("m", "NoPods")
    for kind in ("Ready", "Admitted"):
        sentence = "ResourceClaimTemplate/m exists and is not Tierline's: it has no owner"
        assert sentence in said(user, "m", kind)

    user.api.delete(taken)
    without = "pod early has no claim from the task's ResourceClaimTemplate"
    until("the pod is told of", lambda: without in said(user, "m", "Admitted"))
    user.delete_pod("early")
    user.pod("late", "m")
    user.wait_placed("late")


def test_a_pod_of_which_no_scheduler_speaks_says_what_to_look_at(user: User) -> None:
    user.wait_for_policies()
    user.node(node("node-a"))
    user.apply(profile("m"))
    for name, more, looked_at, told in (
        (
            "lost",
            {"schedulerName": "nobody"},
            "is there one called nobody?",
            "no scheduler named nobody has looked at it",
        ),
        (
            "bereft",
            {"resourceClaims": [{"name": "other", "resourceClaimName": "missing"}]},
            "is there one called default-scheduler, and are its other claims (missing) there?",
            "there is no ResourceClaim missing, which it names",
        ),
    ):
        user.apply(task(name, of="m"))
        made = user.plain_pod(name, name)
        made["spec"] |= more
        user.api.create(made)
        user.wait_placed(name)
        user.wait_task(name, "Stalled", "Ready")
        assert f"pod {name}: no scheduler has spoken of it; {looked_at}" in said(
            user, name, "Ready"
        )
        assert conditions(user.api.get(user.task(name)))["Admitted"]["status"] == "True"
        until_told(user, name, f"  pod {name}: {told}")


def until_told(user: User, name: str, line: str) -> None:
    """Wait until `why-pending` says that of a task."""
    asked = ("tierline", "why-pending", name, "-n", user.namespace)
    until(f"it says {line}", lambda: line in kubectl(user.plane, *asked).splitlines())


def gauge(operator: Operator, name: str) -> float:
    """The value of a metric of the operator."""
    address = f"http://127.0.0.1:{operator.settings['METRICS_PORT']}/metrics"
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return sum(s.value for family in families for s in family.samples if s.name == name)
