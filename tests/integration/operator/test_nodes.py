"""Placed only where the pod can run: nodes and what pods ask of them, with a real kube-scheduler.

The manifests are the smallest with which operators of clusters saw a task placed where its pod
could not run, or one pod keep the operator and the API server busy for ever.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.operator.running import (
    Operator,
    User,
    conditions,
    named_worker,
    placed,
    until,
)
from tests.unit.placement.fleets import node, profile, task

from tierline_api.objects.memtask import MemTask
from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
EVERYTHING = [{"operator": "Exists"}]


def templated(name: str, **spec: Any) -> MemTask:
    """A task with a template of pods that ask this of their node."""
    made = task(name, of="m")
    template = {"spec": {"containers": [{"name": "main", "image": "none"}], **spec}}
    manifest = made.to_api()
    manifest["spec"]["template"] = template
    return MemTask.from_api(manifest)


def pod_on(user: User, name: str, of: str, **spec: Any) -> Manifest:
    """A pod of a task that asks this of its node."""
    user.wait_for_policies()
    made = user.plain_pod(name, of)
    made["spec"] |= {"terminationGracePeriodSeconds": 0, **spec}
    return user.api.create(made)


def message(user: User, name: str) -> str:
    """What is said of a task's admission."""
    said: str = conditions(user.api.get(user.task(name)))["Admitted"]["message"]
    return said


def writes(plane: ControlPlane) -> float:
    """Requests of the kinds by which the operator writes that the API server has answered.

    kube-scheduler patches only the status of pods, and replaces that of claims.
    """
    families = text_string_to_metric_families(plane.api.request("GET", "/metrics"))
    count = 0.0
    for sample in (sample for family in families for sample in family.samples):
        kind = sample.labels.get("resource"), sample.labels.get("subresource")
        if sample.name == "apiserver_request_total" and sample.labels.get("verb") in {
            "PATCH",
            "APPLY",
        }:
            count += sample.value if kind in OF_THE_OPERATOR else 0
    return count


OF_THE_OPERATOR = {
    *(("resourceclaims", ""), ("resourceclaims", "status"), ("pods", "")),
    *(("memtasks", ""), ("memtasks", "status"), ("events", "")),
}


def one_model(user: User) -> None:
    user.node(node("node-a"))
    user.apply(profile("m"))


def test_a_pod_that_may_only_run_elsewhere_is_never_placed(
    user: User, prepared: ControlPlane
) -> None:
    one_model(user)
    user.worker("worker2", pods=110)  # without an agent
    before = writes(prepared)
    user.apply(
        templated(
            "loop", nodeSelector={"kubernetes.io/hostname": "worker2"}, tolerations=EVERYTHING
        )
    )

    user.wait_task("loop", "NotSchedulable")
    until("its pod is there", user.claims)
    time.sleep(5)  # during which nothing is to happen

    assert message(user, "loop") == (
        "node node-a: the pod's nodeSelector wants kubernetes.io/hostname=worker2, which is node-a"
    )
    assert [placed(claim) for claim in user.claims()] == [None]
    assert writes(prepared) - before < 12


def test_a_pod_at_the_gate_of_others_has_no_place_until_they_open_it(user: User) -> None:
    for name in ("node-a", "node-b"):
        user.node(node(name))
    user.apply(profile("m"))
    user.apply(task("queued", of="m"))
    pod = pod_on(user, "p", "queued", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])

    user.wait_task("queued", "NotSchedulable")
    assert "scheduling gate kueue.x-k8s.io/admission is not Tierline's" in message(user, "queued")
    assert [placed(claim) for claim in user.claims()] == [None]

    own = [
        gate for gate in user.api.get(pod)["spec"]["schedulingGates"] if "kueue" not in gate["name"]
    ]
    chosen = {"kubernetes.io/hostname": "node-b"}  # as a queue chooses, when it opens its gate
    user.api.merge(pod, {"spec": {"schedulingGates": own, "nodeSelector": chosen}})
    until("it is placed", lambda: all(map(placed, user.claims())), 20)
    assert [place[0] for place in map(placed, user.claims()) if place] == ["node-b"]


def test_what_the_scheduler_gives_back_is_tried_again_ever_more_seldom(
    user: User, prepared: ControlPlane
) -> None:
    one_model(user)
    user.worker("node-a", pods=110)
    user.worker("worker2", pods=110)
    user.api.merge(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}},
        {"status": {"allocatable": {"cpu": "1"}}},
        subresource="status",
    )
    user.apply(task("loop", of="m"))
    before = writes(prepared)
    begun = time.monotonic()
    wants = {"resources": {"requests": {"cpu": "4"}}}  # which only worker2 has
    pod_on(user, "p", "loop", containers=[{"name": "main", "image": "none", **wants}])

    user.wait_task("loop", "NotSchedulable")
    until("it was tried again", lambda: count(user, "p", "NotSchedulable") == 2)
    assert time.monotonic() - begun > 10
    gave_back = 'node node-a: kube-scheduler found that the pod does not fit there: "0/2 nodes are'
    assert gave_back in message(user, "loop")
    assert [reason for reason, _ in user.events("p")].count("NotSchedulable") == 1
    assert [reason for reason, _ in user.events("p")].count("Placed") == 1
    assert writes(prepared) - before < 25


def test_a_pod_that_fits_on_none_of_many_nodes_is_told_once(user: User) -> None:
    names = [f"node-{letter}" for letter in "abcd"]
    for name in names:
        user.node(node(name))
        user.worker(name, pods=110)
    user.worker("worker2", pods=110)
    allow_processors(user, "worker2")
    user.apply(profile("m"))
    user.apply(task("loop", of="m"))
    wants = {"resources": {"requests": {"cpu": "40"}}}  # which only worker2 has, without an agent
    pod_on(user, "p", "loop", containers=[{"name": "main", "image": "none", **wants}])

    until("all were tried", lambda: count(user, "p", "NotSchedulable") > len(names))
    about = [reason for reason, _ in user.events("loop")]
    assert about.count("NotSchedulable") == 1
    assert about.count("Admitted") <= 1
    assert "nodes node-a, node-b, node-c" in message(user, "loop")

    for name in names:
        allow_processors(user, name)
    user.wait_task("loop", "Admitted")
    assert user.api.get(user.named_pod("p"))["spec"]["nodeName"] in names


def allow_processors(user: User, name: str) -> None:
    """A node has more of them now."""
    allocatable = {"status": {"allocatable": {"cpu": "64"}}}
    user.api.merge(named_worker(name), allocatable, subresource="status")


def count(user: User, name: str, reason: str) -> int:
    """How often the one event with that reason tells that it happened."""
    found = user.api.list("events.k8s.io/v1", "Event", user.namespace)
    about = [e for e in found if e["regarding"]["name"] == name and e["reason"] == reason]
    assert len(about) <= 1
    return sum((e.get("series") or {"count": 1})["count"] for e in about)


def test_a_node_that_is_not_well_takes_nothing_new(user: User) -> None:
    one_model(user)
    user.node(node("aghost"))
    taint = {"key": "dedicated", "value": "infra", "effect": "NoSchedule"}
    user.worker("aghost", ready="Unknown", taints=[taint])
    for name in ("one", "two"):
        user.apply(task(name, of="m"))
        pod_on(user, name, name)
        assert user.wait_placed(name)[0] == "node-a"
    user.worker("node-a", unschedulable=True)

    user.apply(task("three", of="m"))
    user.wait_task("three", "NotSchedulable")

    assert message(user, "three") == (
        "node aghost: it is not Ready (as told); node node-a: it is cordoned"
    )
    user.worker("node-a")
    user.wait_task("three", "Admitted")


def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(user: User) -> None:
    one_model(user)
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    user.worker("node-a", taints=[taint])
    for name in ("tolerates", "does-not"):
        user.apply(task(name, of="m"))
    pod_on(user, "does-not", "does-not")
    pod_on(user, "tolerates", "tolerates", tolerations=[{"key": "dedicated", "operator": "Exists"}])

    user.wait_placed("tolerates")
    user.wait_task("does-not", "NotSchedulable")
    assert message(user, "does-not") == (
        "node node-a: the pod does not tolerate its taint dedicated=gpu:NoSchedule"
    )


def test_each_pod_of_a_daemon_set_gets_the_device_of_its_own_node(user: User) -> None:
    user.wait_for_policies()
    user.apply(profile("m"))
    for name in ("node-a", "node-b", "node-c"):
        user.node(node(name))
        user.worker(name, pods=110)
    user.apply(task("m"))
    labels = {"app": "each"}
    user.api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "each", "namespace": user.namespace},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": {"tierline.io/task": "m"}},
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": "main", "image": "none"}],
                    },
                },
            },
        }
    )

    def bound() -> list[str]:
        pods = user.api.list("v1", "Pod", user.namespace)
        return sorted(pod["spec"].get("nodeName", "") for pod in pods)

    try:
        until("each runs on its node", lambda: bound() == ["node-a", "node-b", "node-c"])
    finally:
        user.api.delete({"apiVersion": "apps/v1", "kind": "DaemonSet"} | named(user, "each"))


def named(user: User, name: str) -> Manifest:
    return {"metadata": {"name": name, "namespace": user.namespace}}


def test_a_cluster_without_a_gpu_says_so(user: User) -> None:
    one_model(user)
    made = task("gpu", of="none").to_api()
    made["spec"]["device"] = {"kind": "cuda"}
    user.apply(MemTask.from_api(made))
    user.pod("p", "gpu")

    user.wait_task("gpu", "NoMatchingDevice")


def beats(user: User, name: str, **ready: str) -> Manifest:
    """A sign of life of the agent of a node, and what it says of itself."""
    now = datetime.now(UTC).isoformat()
    condition = {"type": "Ready", "status": "True", "reason": "Registered", **ready}
    status = {"lastSeen": now, "conditions": [{"lastTransitionTime": now, **condition}]}
    return user.api.merge(memnode(name), {"status": status}, subresource="status")


def memnode(name: str) -> Manifest:
    return {
        "apiVersion": "tierline.io/v1alpha1",
        "kind": "MemNode",
        "metadata": {"name": name},
    }


def test_where_the_agent_is_silent_nothing_new_is_placed(user: User) -> None:
    one_model(user)
    user.node(node("node-b", fast_mib=64))  # the worse one
    beats(user, "node-a")
    beat_at = 0.0

    def only_b_beats() -> bool:
        nonlocal beat_at
        if time.monotonic() - beat_at > 5:
            beats(user, "node-b")
            beat_at = time.monotonic()
        return ready(user, "node-a") == ("Unknown", "AgentSilent")

    until("the silence is told", only_b_beats)
    assert ready(user, "node-b") == ("True", "Registered")
    user.apply(task("m"))
    user.pod("p", "m")
    assert user.wait_placed("p")[0] == "node-b"

    beats(user, "node-a")
    user.apply(task("again", of="m"))
    user.pod("q", "again")
    assert user.wait_placed("q")[0] == "node-a"


def ready(user: User, name: str) -> tuple[str, str]:
    """What is said of whether pods can start on a node."""
    said = conditions(user.api.get(memnode(name)))["Ready"]
    return said["status"], said["reason"]


def test_where_the_kubelet_does_not_know_the_driver_nothing_is_placed(user: User) -> None:
    one_model(user)
    said = "the kubelet does not look there; set agent.kubeletDir"
    beats(user, "node-a", status="False", reason="KubeletNotRegistered", message=said)
    user.apply(task("m"))
    user.wait_task("m", "NotSchedulable")
    assert message(user, "m") == f"node node-a: {said} (KubeletNotRegistered)"

    beats(user, "node-a")
    user.wait_task("m", "Admitted")


def test_one_task_does_not_keep_the_operator_busy(
    user: User, prepared: ControlPlane, operator: Operator
) -> None:
    """Somebody changes a task all the time; the others are served meanwhile.

    Where changes come slowly, the operator answers several of them at once, and is never held back.
    """
    one_model(user)
    user.apply(task("busy", of="m"))
    user.wait_task("busy", "Admitted")
    before, begun, changes = writes(prepared), time.monotonic(), 0
    while "makes too many requests" not in operator.log.read_text() and changes < 1000:
        changes += 1
        user.apply(task("busy", of="m", period_ms=100 + changes % 7))
    spent = time.monotonic() - begun
    user.apply(task("other", of="m"))
    user.wait_task("other", "Admitted")

    # The user's own writes are not the operator's.
    assert writes(prepared) - before - changes < 200 + 5 * spent + 20
