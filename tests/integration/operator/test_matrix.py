"""Node states by workload kinds: every task is where it can run, or truly says why not.

One node is well, and one is in each of the states in which no pod can start. Of each kind of
workload there is one that may run anywhere, and one that is bound to each of the bad nodes.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from tests.integration.operator.running import User, conditions, named_worker, placed, until
from tests.integration.operator.test_nodes import beats, memnode, ready, writes
from tests.unit.placement.fleets import node, profile

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
WELL: Final = "well"
BAD: Final = {
    "not-ready": "it is not Ready (as told)",
    "cordoned": "it is cordoned",
    "tainted": "the pod does not tolerate its taint dedicated=infra:NoSchedule",
    "deleted": "it is no node of the cluster",
    "uninstalled": "its agent has given no sign of life for 40 s",
    "hung": "its agent has given no sign of life for 40 s",
    "crash-looping": "see its log (AgentCrashing)",
    "unregistered": "set agent.kubeletDir (KubeletNotRegistered)",
    "agentless": "",  # never had one
}
"""Each bad node, named after its state, and what is said of it; where there was never an agent, the
node is none that tasks can have, and what is said is that the pod wants no other."""
WANTS: Final = ("hostname=agentless, which is", "metadata.name In agentless")
KINDS: Final = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")
DAEMONS: Final = BAD.keys() - {"cordoned", "tainted", "deleted"}
"""States in which the controller makes a DaemonSet's pod, which cannot start; on a cordoned node
its pods run."""
NOW: Final = "2026-11-21T00:00:00Z"
WITHIN_S: Final = 60.0
WRITES_A_MINUTE: Final = 60
"""Once all is said."""


def make_nodes(user: User) -> None:
    for name in (WELL, *BAD):
        if name != "agentless":
            user.node(node(name, fast_mib=4096, dram_mib=1 << 16))
        user.worker(name, pods=110)
    taint = {"key": "dedicated", "value": "infra", "effect": "NoSchedule"}
    user.worker("not-ready", pods=110, ready="Unknown")
    user.worker("cordoned", pods=110, unschedulable=True)
    user.worker("tainted", pods=110, taints=[taint])
    for name in ("uninstalled", "hung"):
        beats(user, name)
    beats(user, "crash-looping", status="False", reason="AgentCrashing", message="see its log")
    said = {"reason": "KubeletNotRegistered", "message": "set agent.kubeletDir"}
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": NOW, **said}
    status = {"status": {"conditions": [condition]}}  # nobody is there to say it again
    user.api.merge(memnode("unregistered"), status, subresource="status")
    user.api.delete(named_worker("deleted"))
    silent = "Unknown", "AgentSilent"
    until(
        "the silence is told", lambda: ready(user, "uninstalled") == ready(user, "hung") == silent
    )
    assert ready(user, "crash-looping") == ("False", "AgentCrashing"), "it stays"


def pod_template(name: str, bound_to: str) -> Manifest:
    """Pods that bring their task along; bound to a node, if one is given."""
    inline = {"period": "10s", "budget": "256Mi", "device": "cpu", "profile": "m", "task": name}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none"}],
    }
    if bound_to:
        spec["nodeSelector"] = {"kubernetes.io/hostname": bound_to}
    annotations = {f"tierline.io/{key}": value for key, value in inline.items()}
    return {"metadata": {"annotations": annotations, "labels": {"app": name}}, "spec": spec}


def workload(user: User, kind: str, name: str, bound_to: str = "") -> Manifest:
    """A workload of a kind with the task of its name."""
    template = pod_template(name, bound_to)
    metadata = {"name": name, "namespace": user.namespace}
    selector = {"matchLabels": {"app": name}}
    job = {"template": template, "backoffLimit": 0}
    template["spec"]["restartPolicy"] = "Never" if kind in {"Job", "CronJob"} else "Always"
    group, spec = {
        "Pod": ("v1", template["spec"]),
        "Deployment": ("apps/v1", {"selector": selector, "template": template}),
        "StatefulSet": (
            "apps/v1",
            {"selector": selector, "template": template, "serviceName": name},
        ),
        "DaemonSet": ("apps/v1", {"selector": selector, "template": template}),
        "Job": ("batch/v1", job),
        "CronJob": ("batch/v1", {"schedule": "* * * * *", "jobTemplate": {"spec": job}}),
    }[kind]
    if kind == "Pod":
        metadata |= template["metadata"]
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}


def test_every_task_is_where_it_can_run_or_says_why_not(user: User, prepared: ControlPlane) -> None:
    user.wait_for_policies()
    user.apply(profile("m", mib=8))
    make_nodes(user)
    all_ = {
        f"{kind.lower()}-{where or 'anywhere'}": workload(
            user, kind, f"{kind.lower()}-{where or 'anywhere'}", where
        )
        for kind in KINDS
        for where in ("", *BAD)
    }
    try:
        for made in all_.values():
            user.api.create(made)
        until("the first CronJobs run", lambda: tasks_of(user) >= crons(), 90)
        wrong: list[str] = []

        def all_is_well() -> bool:
            wrong[:] = [*misplaced(user), *untrue(user)]
            return not wrong

        try:
            until("every task is well", all_is_well, WITHIN_S)
        except AssertionError as error:
            raise AssertionError("\n".join(wrong)) from error
        for name in crons():  # their next runs are news
            user.api.merge(all_[name], {"spec": {"suspend": True}})
        time.sleep(10)
        before, at = writes(prepared), time.monotonic()
        time.sleep(20)
        spent = (writes(prepared) - before) * 60 / (time.monotonic() - at)
        assert spent <= WRITES_A_MINUTE
    finally:
        for made in all_.values():
            user.api.delete(made)


def crons() -> set[str]:
    return {f"cronjob-{where}" for where in ("anywhere", *BAD)}


def tasks_of(user: User) -> set[str]:
    found = user.api.list("tierline.io/v1alpha1", "MemTask", user.namespace)
    return {one["metadata"]["name"] for one in found}


def misplaced(user: User) -> list[str]:
    """Workloads that may run anywhere, with a pod that does not run on the node that is well."""
    wrong = []
    pods = user.api.list("v1", "Pod", user.namespace)
    for kind in KINDS:
        name = f"{kind.lower()}-anywhere"
        nodes = {p["spec"].get("nodeName") for p in pods if p["metadata"]["labels"]["app"] == name}
        wanted = {WELL, "cordoned", None} if kind == "DaemonSet" else {WELL}
        if kind == "CronJob":
            nodes.discard(None)  # of a run that has begun just now
        if nodes != wanted:
            wrong.append(f"{name} runs on {nodes}, and not on {wanted}")
    for claim in user.claims():
        place = placed(claim)
        pod = claim["metadata"]["ownerReferences"][0]["name"]
        if place and place[0] != WELL and not pod.startswith("daemonset-"):
            wrong.append(f"{pod} has its place on {place}")
    return wrong


def untrue(user: User) -> list[str]:
    """Tasks that are bound to a bad node, and do not say what is wrong with it."""
    wrong = []
    found = user.api.list("tierline.io/v1alpha1", "MemTask", user.namespace)
    said = {one["metadata"]["name"]: conditions(one).get("Admitted", {}) for one in found}
    for kind in KINDS:
        for where, why in BAD.items():
            name = f"{kind.lower()}-{where}"
            if kind == "DaemonSet" and where not in DAEMONS:
                continue
            told = said.get(name, {})
            truths = (f"node {where}: {why}",) if why else WANTS
            true = any(truth in told.get("message", "") for truth in truths)
            if told.get("reason") != "NotSchedulable" or not true:
                wrong.append(f"{name} says {told.get('reason')}: {told.get('message')}")
    return wrong
