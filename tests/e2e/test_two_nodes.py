"""Two nodes as kind and k3s make them, and the guide's own line: to tasks that run, and back.

Both nodes have their kubelet's folder in its usual place, containerd with a socket of its own, and
see nothing of each other: what is told by drains and by agents that die goes through the API alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.conftest import FOLDER, Running
from tests.e2e.product.conftest import programs_image
from tests.e2e.product.release import PATIENCE_S, Release
from tests.e2e.product.tasks import DEFAULT_EXTENT_BYTES, Tasks, pod_spec
from tests.e2e.product.test_uninstalling import objects
from tests.integration.operator.running import conditions, until

from tierline_api.objects.optin import DRIVER
from tierline_cluster.api import Manifest
from tierline_cluster.build import ProgramFolders, built
from tierline_cluster.cluster import Cluster
from tierline_cluster.node import CDI, KUBELET_ROOT, ORDINARY, Node
from tierline_cluster.processes import processes_of
from tierline_cluster.versions import HELM_BUILD, REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]  # also on a busy machine
GUIDE: Final = REPOSITORY / "docs" / "guide" / "kubernetes.md"
SYSTEM: Final = "tierline-system"
WRONG: Final = "/var/lib/tierline/no-kubelet"
"""A folder in which no kubelet looks; the nodes have it for themselves."""
WELL: Final = [
    "ok      an operator leads",
    "ok      the admission policies are in force",
    "ok      pods that opted in have their claims",
    "ok      pool default: agents are ready, known to their kubelets, as configured",
    "ok      pool default: a task is admitted and runs",
]


class Two:
    """The cluster with two nodes, and a release on it."""

    def __init__(self, cluster: Cluster, of_nodes: list[Release]) -> None:
        self.cluster = cluster
        self.releases = of_nodes
        self.release = of_nodes[0]
        self.api = self.release.api
        self.plane = self.release.cluster.plane

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line as a user of the cluster does, in the repository."""
        path = f"{built(HELM_BUILD)}:{self.plane.programs}:{Path(sys.executable).parent}"
        home = self.cluster.nodes[0].folder / "home"
        return subprocess.run(
            ["sh", "-c", line],
            cwd=REPOSITORY,
            env={
                "KUBECONFIG": str(self.plane.kubeconfig),
                "PATH": f"{path}:{os.environ['PATH']}",
                "HOME": str(home),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def memnode(self, name: str) -> Manifest:
        return self.api.get(
            {
                "apiVersion": "tierline.io/v1alpha1",
                "kind": "MemNode",
                "metadata": {"name": name},
            }
        )

    def ready(self, node: str) -> str:
        """What is said of whether pods can start on a node."""
        return str(conditions(self.memnode(node))["Ready"]["reason"])

    def agent(self, node: str) -> int:
        """The process of a node's agent."""
        group = self.cluster.group
        return until("the agent runs", lambda: the_one(agents_on(node, group)), PATIENCE_S)

    def seen(self, node: str) -> str:
        return str(self.memnode(node)["status"]["lastSeen"])


def the_one(found: list[int]) -> int | None:
    """What is alone in a list."""
    return found[0] if len(found) == 1 else None


def agents_on(node: str, group: str) -> list[int]:
    found = []
    for pid in processes_of("tierline_agent", group):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"NODE_NAME={node}".encode() in environment:
            found.append(pid)
    return found


def guides_line() -> str:
    """The line by which the guide installs a release on kind."""
    (found,) = re.findall(r"^\$ (helm install .*\\\n.*kind-values.yaml)$", GUIDE.read_text(), re.M)
    return str(found)


@pytest.fixture(scope="module")
def two(programs: ProgramFolders) -> Iterator[Two]:
    whole = Cluster(FOLDER.with_name("e2e-two"), "first", "second", apart=ORDINARY)
    with whole.guarded():
        plane, _ = whole.up(programs)
        releases = [Release(Running(plane, node)) for node in whole.nodes]
        for one, node in zip(releases, whole.nodes, strict=True):
            one.import_images()
            node.import_image(programs_image().write(node.folder / "python.tar"))
        yield Two(whole, releases)


@pytest.fixture
def tasks(two: Two) -> Tasks:
    return Tasks(two.release, two.plane.namespace(), DEFAULT_EXTENT_BYTES)


def place(tasks: Tasks, name: str) -> str:
    """The node of the one pod of a task, which runs."""
    return str(tasks.wait_running(name)["spec"]["nodeName"])


def test_the_guides_line_a_check_a_drain_an_agent_that_dies_and_no_trace(
    two: Two, tasks: Tasks
) -> None:
    began = time.monotonic()
    done = two.shell(guides_line())
    assert done.returncode == 0, done.stderr
    for one in two.releases:
        one.wait_ready()
    for name in ("camera", "lidar"):
        tasks.apply_with_pods(name)
        tasks.wait(name, Ready="Running")
    print(f"helm install to two tasks that are Ready: {time.monotonic() - began:.1f} s")
    assert {place(tasks, "camera"), place(tasks, "lidar")} == {"first", "second"}
    columns = two.plane.kubectl("get", "memnodes").splitlines()
    assert columns[0].split()[:4] == ["NAME", "READY", "HEALTH", "DEVICES"]
    assert all(re.search(r" 1 x .* 512Mi +\d+Mi ", line) for line in columns[1:]), columns
    shown = two.plane.kubectl("get", "memprofiles", "-n", tasks.namespace)
    assert re.search(r"camera .* 48Mi +0Mi +240ms ", shown), shown

    checks(two)
    home = drains(two, tasks, place(tasks, "camera"))
    keeps_dying(two, tasks, home)
    misconfigured(two)
    uninstalls(two, tasks)


def checks(two: Two) -> None:
    """`helm test`, as a user runs it, and `kubectl tierline check`."""
    done = two.shell("helm test tierline --namespace tierline-system --logs")
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line in WELL]
    assert told[: len(WELL)] == WELL, (
        done.stdout
    )  # Helm prints it once for each object of the check
    done = two.shell("kubectl tierline check")
    assert (done.returncode, done.stdout.splitlines()) == (0, WELL), done.stdout + done.stderr
    left = two.api.list("v1", "Pod", SYSTEM, labelSelector="app.kubernetes.io/component=check")
    assert not left


def drains(two: Two, tasks: Tasks, node: str) -> str:
    """Drain a node: what ran there goes on elsewhere; returns where that is."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE_S}s")
    two.plane.kubectl("drain", node, *words)
    (other,) = {"first", "second"} - {node}
    for name in ("camera", "lidar"):
        until(f"{name} moves", lambda name=name: place(tasks, name) == other, PATIENCE_S)  # type: ignore[misc]
        tasks.wait_jobs(name)
    two.plane.kubectl("uncordon", node)
    return other


def keeps_dying(two: Two, tasks: Tasks, node: str) -> None:
    """An agent that dies again and again: nothing new goes there, and what runs goes on."""
    (other,) = {"first", "second"} - {node}
    seen = ""
    for _ in range(2):  # it counts the lives of which it gave a sign
        until(
            "it is well",
            lambda seen=seen: two.seen(node) > seen and two.ready(node) == "Registered",  # type: ignore[misc]
            PATIENCE_S,
        )
        dies = two.agent(node)
        os.kill(dies, signal.SIGKILL)
        until("another one runs", lambda dies=dies: two.agent(node) != dies, PATIENCE_S)  # type: ignore[misc]
        seen = two.seen(node)  # nothing that the dead one wrote comes after this
    until("it is known", lambda: two.ready(node) == "AgentCrashing", PATIENCE_S)

    bound = {"nodeSelector": {"kubernetes.io/hostname": node}, **pod_spec(4)}
    template = {"metadata": {"labels": {"app": "bound"}}, "spec": bound}
    tasks.apply("bound", extents=4, template=template)
    told = conditions(tasks.wait("bound", Admitted="NotSchedulable"))["Admitted"]["message"]
    assert f"node {node}: the agent keeps ending soon after it has started" in told
    tasks.apply_with_pods("free", extents=4)
    assert place(tasks, "free") == other
    for name in ("camera", "lidar"):
        tasks.wait_jobs(name)
        (pod,) = tasks.pods(name)
        assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]
    assert two.ready(node) == "AgentCrashing", "steadily"


def misconfigured(two: Two) -> None:
    """A kubelet that does not look where the agent is: the check fails, and says so."""
    line = guides_line().replace("helm install", "helm upgrade").replace("--create-namespace", "")
    done = two.shell(f"{line} --set agent.kubeletDir={WRONG}")
    assert done.returncode == 0, done.stderr

    def unregistered() -> list[str]:
        return [n for n in ("first", "second") if two.ready(n) == "KubeletNotRegistered"]

    (node,) = until("an agent waits for its kubelet", unregistered, PATIENCE_S)
    done = two.shell("helm test tierline --namespace tierline-system --logs")
    said = (
        f"node {node}: the kubelet does not look for plugins in {WRONG}/plugins_registry; set the "
        "chart's value agent.kubeletDir to the kubelet's --root-dir (KubeletNotRegistered)"
    )
    assert done.returncode != 0
    assert said in done.stdout, done.stdout + done.stderr
    checked = two.shell("kubectl tierline check --no-tasks")
    assert checked.returncode == 1
    assert said in checked.stdout
    # A kubelet ends no pod with a driver that it does not know.
    done = two.shell(line)
    assert done.returncode == 0, done.stderr
    for one in two.releases:
        one.wait_ready()
    until("it is known", lambda: two.ready(node) == "Registered", PATIENCE_S)
    (other,) = {"first", "second"} - {node}
    # Where the agent that kept dying was not replaced it has not lived for long enough yet.
    assert two.ready(other) in {"Registered", "AgentCrashing"}


def uninstalls(two: Two, tasks: Tasks) -> None:
    """What the chart's page says of uninstalling, with nothing kept: no trace on either node."""
    two.shell("kubectl delete memtasks --all --all-namespaces")
    two.shell("kubectl delete pod tierline-check --namespace tierline-system")
    tasks.remove_all()
    done = two.shell("helm uninstall tierline --namespace tierline-system --wait")
    assert done.returncode == 0, done.stderr

    def kept() -> set[str]:
        return {one.split()[0] for one in objects(two.api)}

    until(f"{objects(two.api)}", lambda: kept() <= {"CustomResourceDefinition"}, PATIENCE_S)
    two.shell("kubectl delete crds -l app.kubernetes.io/name=tierline")
    until(f"objects are left: {objects(two.api)}", lambda: not objects(two.api), PATIENCE_S)
    group = two.cluster.group
    until("agents are left", lambda: not processes_of("tierline_agent", group), PATIENCE_S)
    for node in two.cluster.nodes:
        until(f"{node.name}: {traces(node)}", lambda node=node: not traces(node), PATIENCE_S)  # type: ignore[misc]


def traces(node: Node) -> list[str]:
    """What pods and a registration leave for the kubelet and the container runtime."""
    kubelet = node.outside(KUBELET_ROOT)
    found = [*kubelet.glob("plugins_registry/*"), *kubelet.glob("plugins/tierline.io/*")]
    found += node.outside(CDI).glob(f"{DRIVER}-*")
    found += node.outside("/var/lib/tierline").glob("pods/*")
    return sorted(map(str, found))
