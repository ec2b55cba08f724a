"""`kubectl tierline check` and what `helm test` runs, where all works and where something does not.

Agents are DaemonSets as the chart makes them, with pods that nobody starts; the test is the kubelet
and the agent of each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
from tests.chart.helm import SYSTEM, objects
from tests.integration.operator.running import Operator, User, until
from tests.integration.operator.test_nodes import beats, memnode
from tests.integration.policies import apply_policies, policies
from tests.unit.placement.fleets import node

from tierline_cluster.api import ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]
POOLS: Final = ("default", "other")
CHECKS: Final = "templates/tests/check.yaml"


def daemon_set(pool: str) -> Manifest:
    """The agents of a pool, as far as the check looks."""
    labels = {"app.kubernetes.io/component": "agent", "tierline.io/pool": pool}
    containers = [{"name": "agent", "image": "localhost/tierline-agent:0"}]
    spec = {"containers": containers, "nodeSelector": {"kubernetes.io/hostname": f"node-{pool}"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"tierline-agent-{pool}", "namespace": SYSTEM, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def pods(user: User, selector: str = "") -> list[Manifest]:
    """The pods of the release's namespace."""
    found = user.api.list("v1", "Pod", SYSTEM, **({"labelSelector": selector} if selector else {}))
    return [{"apiVersion": "v1", "kind": "Pod", **one} for one in found]


def agent_of(user: User, pool: str) -> Manifest:
    """The pod of a pool's agent."""
    selector = f"tierline.io/pool={pool}"
    (pod,) = until("the agent has a pod", lambda: pods(user, selector))
    return pod


def make_ready(user: User, pool: str) -> None:
    """Be the kubelet of a pool's agent, and the agent."""
    user.api.wait(agent_of(user, pool), lambda pod: pod["spec"].get("nodeName"))
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    user.api.merge(agent_of(user, pool), {"status": ready}, subresource="status")
    beats(user, f"node-{pool}")


@pytest.fixture
def installed(user: User) -> Iterator[User]:
    """Two pools of a node each, and a kubelet on which every task's pod runs to its end."""
    user.wait_for_policies()
    for pool in POOLS:
        user.node(node(f"node-{pool}"))
        user.worker(f"node-{pool}", pods=110)
        user.api.create(daemon_set(pool))
    for pool in POOLS:
        make_ready(user, pool)
    ended = threading.Event()

    def be_the_kubelet() -> None:
        while not ended.wait(0.2):
            for pod in pods(user, "tierline.io/task"):
                if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                    done = {"status": {"phase": "Succeeded"}}
                    try:
                        user.api.merge(pod, done, subresource="status")
                    except ApiError as error:
                        if error.status != HTTPStatus.NOT_FOUND:  # it has gone meanwhile
                            raise

    kubelet = threading.Thread(target=be_the_kubelet)
    kubelet.start()
    yield user
    ended.set()
    kubelet.join()
    for pool in POOLS:
        user.api.delete(daemon_set(pool))
    for pod in pods(user):
        user.api.delete(pod, gracePeriodSeconds=0)
    until("its pods are gone", lambda: not pods(user))


def check(user: User, *arguments: str) -> tuple[int, str, str]:
    """`kubectl tierline check`: exit status, output and errors."""
    chosen = ("--kubeconfig", str(user.plane.kubeconfig))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kubectl-tierline")), "check", *arguments, *chosen],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def left(user: User) -> list[str]:
    """What a check has left."""
    kinds = (
        ("v1", "Pod"),
        ("tierline.io/v1alpha1", "MemTask"),
        ("tierline.io/v1alpha1", "MemProfile"),
    )
    names = [one["metadata"]["name"] for kind in kinds for one in user.api.list(*kind, SYSTEM)]
    return [name for name in names if name.startswith("tierline-check")]


def test_an_installation_that_works(installed: User, prepared: ControlPlane) -> None:
    ended, told, errors = check(installed)

    assert (ended, errors) == (0, ""), told
    assert told.splitlines() == [
        "ok      an operator leads",
        "ok      the admission policies are in force",
        "ok      pods that opted in have their claims",
        *(
            f"ok      pool {pool}: {works}"
            for pool in POOLS
            for works in (
                "agents are ready, known to their kubelets, as configured",
                "a task is admitted and runs",
            )
        ),
    ]
    until("nothing is left", lambda: not left(installed))

    # `helm test` does the same with the rights that the chart gives it.
    for manifest in objects(only=CHECKS):  # the pod as well: the test is what runs in it
        prepared.api.apply(manifest)
    account = f"system:serviceaccount:{SYSTEM}:tierline-check"
    done = subprocess.run(
        [sys.executable, "-m", "tierline_operator.check", SYSTEM],
        env={**os.environ, "KUBECONFIG": str(prepared.kubeconfig_for(account))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, told), done.stderr
    until("nothing is left", lambda: left(installed) == ["tierline-check"])


def test_what_does_not_work_is_named(
    installed: User, prepared: ControlPlane, operator: Operator
) -> None:
    user = installed

    def found() -> str:
        ended, told, errors = check(user, "--no-tasks")
        assert ended == 1
        assert errors == "kubectl tierline: the installation does not work\n"
        return told

    # A tier that its medium does not hold any more: the agent runs on with what is there.
    said = "the tier dram has 2 GiB and not 8 GiB: /dev/shm has 1 GiB free"
    small = condition("Healthy", "NotAsConfigured", said)
    status: dict[str, Any] = {"conditions": [condition("Ready", "Registered", "", "True"), small]}
    user.api.merge(memnode("node-default"), {"status": status}, subresource="status")
    assert f"NOT OK  pool default: {WELL}: node node-default: {said} (NotAsConfigured)" in found()

    # An agent that runs, and of which the kubelet knows nothing, says itself why it is not ready.
    said = "the kubelet does not look there; set agent.kubeletDir"
    beats(user, "node-other", status="False", reason="KubeletNotRegistered", message=said)
    container: Manifest = {"name": "agent", "image": "a", "imageID": "", "ready": False}
    container |= {"restartCount": 0, "state": {"running": {}}}
    runs: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "False"}]}
    runs |= {"containerStatuses": [container], "phase": "Running"}
    user.api.merge(agent_of(user, "other"), {"status": runs}, subresource="status")
    assert f"NOT OK  pool other: {WELL}: node node-other: {said} (KubeletNotRegistered)" in found()

    # And one that it never held: the agent does not start.
    message = "starting\nthe tier dram: 8 GiB do not fit on /dev/shm; choose a smaller size"
    state = {"terminated": {"exitCode": 2, "message": message}}
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    container |= {"restartCount": 3, "state": waits, "lastState": state}
    crashed: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "False"}]}
    crashed |= {"containerStatuses": [container]}
    user.api.merge(agent_of(user, "other"), {"status": crashed}, subresource="status")
    assert (
        "node node-other: its agent is not ready, it ended with 2: the tier dram: 8 GiB do not fit "
        "on /dev/shm; choose a smaller size"
    ) in found()

    # A policy that is there, and looks at no namespace.
    [policy] = [one for one in policies() if one["kind"] == "MutatingAdmissionPolicy"]
    nowhere = {"namespaceSelector": {"matchLabels": {"never": "so"}}}
    user.api.merge(policy, {"spec": {"matchConstraints": nowhere}})
    until("pods are not gated", lambda: not gated(user))
    assert "NOT OK  the admission policies are in force: a pod with the annotation" in found()
    user.api.create(user.plain_pod("early", "m"))
    user.api.delete(policy)
    apply_policies(prepared)
    user.wait_for_policies()
    early = f"{user.namespace}/early run outside of Tierline: made while its admission policies"
    assert f"NOT OK  pods that opted in have their claims: {early} were not in force" in found()
    user.delete_pod("early")
    assert "ok      pods that opted in have their claims" in found()

    operator.kill()
    assert "NOT OK  an operator leads: nobody has renewed Lease/tierline-operator for" in found()


def test_whatever_of_the_policies_is_not_there_is_named(
    installed: User, prepared: ControlPlane
) -> None:
    for manifest in policies():
        prepared.api.delete(manifest)
    ended, told, _ = check(installed, "--no-tasks")
    apply_policies(prepared)
    installed.wait_for_policies()
    assert ended == 1
    [line] = [line for line in told.splitlines() if "policies" in line]
    named = {(m["kind"], m["metadata"]["name"]) for m in policies()}
    assert named
    for kind, name in named:
        [clause] = re.findall(rf"{kind} ([a-z, .-]+) (?:is|are) not there", line)
        assert name in clause.split(", ")
    assert "tierline-root" not in line, "which the chart's values may leave out"

    stays = [one for one in policies() if one["metadata"]["name"] == "tierline-task-stays"]
    installed.api.merge(stays[-1], {"spec": {"validationActions": ["Audit"]}})
    _, told, _ = check(installed, "--no-tasks")
    installed.api.delete(stays[-1])
    apply_policies(prepared)
    wrong = "ValidatingAdmissionPolicyBinding tierline-task-stays is not as this release installs"
    assert f"NOT OK  the admission policies are in force: {wrong} it; install" in told


WELL: Final = "agents are ready, known to their kubelets, as configured"


def condition(kind: str, reason: str, message: str, status: str = "False") -> Manifest:
    at = "2026-11-21T00:00:00Z"
    said = {"reason": reason, "message": message, "lastTransitionTime": at}
    return {"type": kind, "status": status, **said}


def gated(user: User) -> object:
    made = user.api.create(user.plain_pod("probe", "m"), dry_run=True)
    return made["spec"].get("schedulingGates")


def test_who_may_not_check_is_told_so(user: User) -> None:
    ended, _, errors = check(user, "--as", "stranger")
    assert ended == 1
    assert errors.startswith("kubectl tierline: cannot check: GET ")
    assert "403" in errors
    ended, _, errors = check(user, "-n", user.namespace, "--no-tasks")
    assert ended == 1
    ended, _, errors = check(user, "-A")
    assert ended == 2
