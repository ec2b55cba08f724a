"""What users see of their tasks: kubectl's columns and events, and `kubectl tierline`.

Most commands run within the test's process, because the Kubernetes client takes long to import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import objects
from tests.integration.operator.running import User, until
from tests.unit.placement.fleets import node, profile, task

from tierline_cli.cluster.plugin import group
from tierline_cli.errors import run
from tierline_cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]


def kubectl(plane: ControlPlane, *arguments: str) -> str:
    """Run kubectl as a user does who has installed the plugin."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        [str(plane.programs / "kubectl"), *arguments],
        env={**os.environ, "PATH": os.pathsep.join(folders), "KUBECONFIG": str(plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Plugin:
    """The plugin, run within this process."""

    user: User
    output: pytest.CaptureFixture[str]

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        """Return exit status, output and errors."""
        chosen = str(kubeconfig or self.user.plane.kubeconfig)
        self.output.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(group, "kubectl tierline", [*arguments, "--kubeconfig", chosen])
        return int(str(ended.value)), *self.output.readouterr()

    def tell(self, *arguments: str) -> str:
        """Return what a command prints of the user's namespace."""
        status, out, errors = self.run(*arguments, "-n", self.user.namespace)
        assert status == 0, errors
        return out

    def json(self, *arguments: str) -> dict[str, Any]:
        """The same for programs."""
        found: dict[str, Any] = json.loads(self.tell(*arguments, "-o", "json"))
        return found


@pytest.fixture
def plugin(user: User, capsys: pytest.CaptureFixture[str]) -> Plugin:
    """`kubectl tierline` on the user's namespace."""
    return Plugin(user, capsys)


def run_one_task(user: User) -> None:
    """A task that runs and has missed a deadline."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.apply(task("m"))
    user.pod("one", "m")
    user.wait_placed("one")
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    user.api.merge(user.named_pod("one"), {"status": ready}, subresource="status")
    user.wait_task("m", "Running", "Ready")
    user.observe("one", jobs=10, misses=0, responseTimeWorst="12ms", streamedBytesPerJob=2**20)
    user.wait_task("m", "NoMisses", "DeadlinesMet")
    user.observe("one", jobs=20, misses=1, responseTimeWorst="112ms", streamedBytesPerJob=2**20)
    user.wait_task("m", "DeadlinesMissed", "DeadlinesMet")


def test_a_task_that_runs(user: User, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    run_one_task(user)

    # the columns, as the API server makes them
    columns, row, *rest = user.plane.kubectl("get", "memtasks", "-n", user.namespace).splitlines()
    assert not rest
    assert columns.split() == [
        *("NAME", "PHASE", "NODE", "PERIOD", "MISSES"),
        *("FAST-MEMORY", "STREAMED", "REASON", "AGE"),
    ]
    shown = dict(zip(columns.split(), row.split(), strict=True))
    assert (shown["NAME"], shown["PHASE"], shown["NODE"]) == ("m", "Running", "node-a")
    assert (shown["PERIOD"], shown["MISSES"], shown["REASON"]) == ("100ms", "1", "Running")
    assert shown["FAST-MEMORY"].endswith("Mi")
    assert shown["STREAMED"] == "1Mi"
    wide = user.plane.kubectl("get", "memtasks", "-n", user.namespace, "-o", "wide").split()
    assert "112ms" in wide, "the worst response"

    def profiles() -> list[str]:
        rows = user.plane.kubectl("get", "memprofiles", "-n", user.namespace).splitlines()
        return rows[1].split()[-4:-1]

    until("the profile is told", lambda: profiles() == ["64Mi", "4Mi", "10ms"])

    # the story, in order; an event follows what it tells
    until("the story is told", lambda: "DeadlinesMissed" in dict(user.events("m")))
    until("the pod is told", lambda: "Placed" in dict(user.events("one")))
    told = user.plane.kubectl("describe", "memtask", "m", "-n", user.namespace)
    story = [line.split()[1] for line in told.partition("Events:")[2].splitlines()[3:]]
    wanted = ["Admitted", "Running", "NoMisses", "DeadlinesMissed"]
    assert [reason for reason in story if reason in wanted] == wanted
    assert user.events("one")[-1] == ("Placed", "MemTask/m has its place on node-a/cpu0")

    # the plugin
    found = plugin.json("top")
    (seen,) = found["tasks"]
    assert (seen["name"], seen["phase"], seen["node"], seen["device"]) == (
        *("m", "Running"),
        *("node-a", "cpu0"),
    )
    assert (seen["period_s"], seen["jobs"], seen["misses"]) == (0.1, 20, 1)
    assert seen["response_worst_s"] == 0.112
    assert [one["name"] for one in found["nodes"]] == ["node-a"]
    table = kubectl(user.plane, "tierline", "top", "-n", user.namespace).splitlines()
    assert table[0].split()[:3] == ["TASK", "PHASE", "DEVICE"]
    assert table[1].split()[:3] == ["m", "Running", "node-a/cpu0"]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", pause)
        _, watched, _ = plugin.run("top", "--watch", "--interval", "0.7", "-n", user.namespace)
    assert (pauses, "node-a/cpu0" in watched) == ([0.7], True)
    told = plugin.tell("explain", "m")
    assert told.startswith(f"MemTask {user.namespace}/m: Running\n")
    assert "measured      20 jobs, 1 of them late, worst 112 ms" in told
    assert "pod           one: Running" in told
    assert plugin.tell("why-pending") == "nothing waits: 1 MemTasks, all admitted\n"
    assert plugin.tell("why-pending", "one") == (
        f"MemTask {user.namespace}/m does not wait: 1 of 1 pods are ready\n"
    )


def test_a_task_that_waits(user: User, plugin: Plugin) -> None:
    user.node(node("node-a"))
    user.apply(profile("m", compute_ms=50))
    user.apply(task("too-much", of="m", period_ms=40))
    user.wait_task("too-much", "DeadlineInfeasible")
    user.pod("held", "too-much")
    user.pod("lost", "nowhere")
    until("the pod is told", lambda: "DeadlineInfeasible" in dict(user.events("held")))
    until("the other pod is told", lambda: user.events("lost"))

    reason, note = user.events("held")[-1]
    assert reason == "DeadlineInfeasible"
    assert note.startswith("waits for MemTask/too-much: ")
    found = plugin.json("why-pending")
    (waiting,) = found["waiting"]
    assert waiting["reason"] == "DeadlineInfeasible"
    assert waiting["message"] in note
    assert waiting["gated_pods"] == ["held"]
    [orphan] = found["pods_without_task"]
    assert (orphan["pod"], orphan["task"]) == ("lost", "nowhere")
    assert orphan["why"].startswith("MemTaskMissing: there is no MemTask/nowhere")
    told = plugin.tell("why-pending", "held")
    assert told.splitlines()[0] == (
        f"MemTask {user.namespace}/too-much: Pending (DeadlineInfeasible)"
    )
    assert "what helps: lengthen its deadline or period" in told
    _, everywhere, _ = plugin.run("why-pending", "-A")
    assert f"MemTask {user.namespace}/too-much" in everywhere


def test_a_task_that_is_admitted_and_does_not_run(user: User, plugin: Plugin) -> None:
    """The reasons lie with a quota, kube-scheduler, a kubelet, and the name of a task."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    for name in ("scheduled", "pulling", "preparing"):
        user.apply(task(name, of="m"))
        user.pod(f"{name}-pod", name)
        user.wait_placed(f"{name}-pod")
    user.api.wait(user.named_pod("scheduled-pod"), is_unschedulable)
    for name, status in (("pulling", PULLING), ("preparing", CREATING)):
        pod = user.named_pod(f"{name}-pod")
        user.api.wait(pod, is_unschedulable)
        user.api.merge(pod, {"status": status}, subresource="status")
    user.api.create(prepare_fails(user, "preparing-pod"))
    user.pod("wrong", "nowhere")
    until("it is told", lambda: user.events("wrong"))
    metadata = {"name": "q", "namespace": user.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    user.api.apply(quota | {"spec": {"hard": {"pods": "4"}}})
    user.api.wait(quota, lambda found: (found.get("status") or {}).get("hard"))
    templated = task("forbidden", of="m").to_api()
    templated["metadata"] = {"name": "forbidden", "namespace": user.namespace}
    templated["spec"]["template"] = {"spec": {"containers": [{"name": "c", "image": "none"}]}}
    user.api.apply(templated)
    user.wait_task("forbidden", "ReplicaFailure", "Ready")

    here = ("why-pending", "-n", user.namespace)
    ended, told, errors = plugin.run(*here, kubeconfig=viewer_of(user))

    assert ended == 0, errors
    for line in (
        "  pod scheduled-pod: kube-scheduler: 0/1 nodes are available: 1 Too many pods",
        "  pod pulling-pod: ErrImagePull: no such image",
        "  pod preparing-pod: FailedPrepareDynamicResources: the agent is not registered",
        "  why:        MemTaskMissing: there is no MemTask/nowhere in namespace",
        f"MemTask {user.namespace}/forbidden: admitted on node-a, but not running",
        "exceeded quota: q",
        "admitted, but not running: 4",
    ):
        assert line in told


PULLING = {
    "containerStatuses": [
        {
            "name": "main",
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}},
        }
    ],
    "conditions": [{"type": "PodScheduled", "status": "True"}],
}
CREATING = {"conditions": [{"type": "PodScheduled", "status": "True"}]}


def is_unschedulable(pod: dict[str, Any]) -> bool:
    """Whether kube-scheduler has looked at it in vain."""
    found = pod["status"].get("conditions", ())
    return any(one.get("reason") == "Unschedulable" for one in found)


def prepare_fails(user: User, pod: str) -> dict[str, Any]:
    """The event of a kubelet that cannot prepare a claim."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.1", "namespace": user.namespace},
        "involvedObject": {"kind": "Pod", "namespace": user.namespace, "name": pod},
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": "the agent is not registered",
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }


def viewer_of(user: User) -> Path:
    """A kubeconfig that may view the user's namespace, and nothing else."""
    for manifest in objects(only="templates/users.yaml"):
        user.api.apply(manifest)
    group = "rbac.authorization.k8s.io"
    for role in ("view", "tierline-view"):
        user.api.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": user.namespace},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [
                    {"apiGroup": group, "kind": "User", "name": "viewer"},
                    {"apiGroup": group, "kind": "Group", "name": "viewers"},
                ],
            }
        )
    return user.plane.kubeconfig_for("viewer")


def test_a_cause_that_is_over_is_not_named(user: User, plugin: Plugin) -> None:
    """As of a pod that was made before its task, and so before the template of its claim."""
    user.node(node("node-a"))
    user.apply(profile("m"))
    user.pod("early", "m")
    until("its claim cannot be made", lambda: "FailedResource" in kubectl_events(user))
    user.apply(task("m"))
    user.wait_placed("early")
    pod = user.named_pod("early")
    user.api.wait(pod, is_unschedulable)
    bound = CREATING["conditions"][0] | {"lastTransitionTime": "2099-01-01T00:00:00Z"}
    user.api.merge(pod, {"status": {"conditions": [bound]}}, subresource="status")
    told = plugin.tell("why-pending", "early")
    assert "FailedResourceClaimCreation" not in told
    assert "  pod early: is starting" in told


def kubectl_events(user: User) -> str:
    return user.plane.kubectl("get", "events", "-n", user.namespace)


def test_it_asks_as_somebody_else_as_kubectl_does(user: User, plugin: Plugin) -> None:
    viewer_of(user)
    user.apply(task("m"))
    here = ("why-pending", "-n", user.namespace)
    kubeconfig = yaml.safe_load(user.plane.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] |= {"as": "viewer", "as-groups": ["one", "two"]}
    as_said = user.plane.folder / "as-viewer.kubeconfig"
    as_said.write_text(yaml.safe_dump(kubeconfig))
    for how, chosen in (
        (("--as", "viewer"), None),
        (("--as", "nobody", "--as-group", "none", "--as-group", "viewers"), None),
        ((), as_said),
    ):
        ended, told, errors = plugin.run(*here, *how, kubeconfig=chosen)
        assert (ended, f"MemTask {user.namespace}/m" in told) == (0, True), errors

    ended, _, errors = plugin.run(*here, "--as", "stranger")
    assert ended == 1
    assert "you may not; ask for the ClusterRole tierline-view" in errors
    ended, _, errors = plugin.run(*here, "--as-group", "viewers")
    assert ended == 2
    assert "--as-group needs --as" in errors


def test_completion_knows_commands_and_tasks(user: User) -> None:
    for name in ("vision", "vit", "speech"):
        user.apply(task(name))

    asked = ("__complete", "tierline", "explain", "-n", user.namespace, "vi")
    assert kubectl(user.plane, *asked).split() == ["vision", "vit", ":4"]


def test_mistakes_are_sentences(plugin: Plugin, tmp_path: Path) -> None:
    user, plane = plugin.user, plugin.user.plane
    closed = tmp_path / "closed"
    closed.write_text(plane.kubeconfig.read_text().replace(plane.server, "https://127.0.0.1:1"))
    here = ("-n", user.namespace)
    for arguments, kubeconfig, status, said in (
        (("explain", "m", *here), None, 2, f"cannot read MemTask/m in namespace {user.namespace}"),
        (("why-pending", "m", *here), None, 2, "there is neither MemTask/m nor Pod/m in namespace"),
        (("top", "-A", *here), None, 2, "-n and -A contradict each other; write one of them"),
        (("explain", "m", "-A"), None, 2, "write -n instead of -A"),
        (("top", "--context", "moon"), None, 2, "the kubeconfig has no context 'moon'; there are"),
        (("top", *here), tmp_path / "none", 2, "set KUBECONFIG or --kubeconfig"),
        (
            ("top", *here),
            plane.kubeconfig_for("stranger"),
            1,
            "you may not; ask for the ClusterRole tierline-view in the namespace",
        ),
        (("top", *here), closed, 1, "no answer from https://127.0.0.1:1"),
    ):
        ended, _, errors = plugin.run(*arguments, kubeconfig=kubeconfig)
        assert ended == status, (arguments, errors)
        (line,) = errors.splitlines()
        assert line.startswith("kubectl tierline: "), errors
        assert said in line
