"""Tierline on the test cluster as its chart installs it, with operator and agent as processes.

Both have exactly the rights of a release: the operator a certificate of its service account, the
agent a token that names its node, as the kubelet gives it to a pod.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import yaml
from tests.chart.helm import SYSTEM, rights
from tests.e2e.busybox import BUSYBOX
from tests.integration.conftest import install_crds
from tests.integration.dra.bundle import lay_out
from tests.integration.operator.running import prepare
from tests.integration.policies import policies

from tierline_api.schema.base import API_VERSION
from tierline_cluster import cgroups
from tierline_cluster.api import Api, ApiError, Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.errors import ClusterError
from tierline_cluster.node import CDI, Node
from tierline_cluster.processes import wait_until
from tierline_cluster.versions import REPOSITORY

ACCOUNT: Final = "tierline-agent"
EXTENT_BYTES: Final = 64 << 10
FAST_EXTENTS: Final = 16
PATIENCE_S: Final = 180


def install(plane: ControlPlane) -> None:
    """Apply what the chart would: CRDs, policies, DeviceClass, rights."""
    install_crds(plane)
    prepare(plane)
    for manifest in rights("agent"):
        plane.api.apply(manifest)


def uninstall(plane: ControlPlane, node: str) -> None:
    """Take everything away again, what the agent published and what tests left included."""
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    plane.api.delete(slices | {"metadata": {"name": f"{node}-tierline.io"}})
    plane.api.delete(agent_pod(node), gracePeriodSeconds=0)
    for manifest in (*policies(), *rights("operator"), *rights("agent")):
        plane.api.delete(manifest)
    crds = [yaml.safe_load(path.read_text()) for path in (REPOSITORY / "crds").glob("*.yaml")]
    for manifest in crds:
        sweep(plane.api, API_VERSION, manifest["spec"]["names"]["kind"])
        plane.api.delete(manifest)
    for manifest in (agent_pod(node), *crds):
        plane.api.wait_gone(manifest, PATIENCE_S)


def sweep(api: Api, api_version: str, kind: str, namespace: str = "") -> None:
    """Delete all objects of a kind; no finalizer's owner has to be there for that."""
    try:
        found = api.list(api_version, kind, namespace)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return  # the kind is not there any more
    for one in found:
        manifest = {"apiVersion": api_version, "kind": kind, "metadata": one["metadata"]}
        api.delete(manifest, gracePeriodSeconds=0)
        with suppress(ApiError):  # it has gone by itself
            api.merge(manifest, {"metadata": {"finalizers": None}})


def agent_pod(node: str) -> Manifest:
    """A pod of the agent's account on `node`: the agent's token is bound to it."""
    container = {
        "name": "agent",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "sleep 86400"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tierline-agent", "namespace": SYSTEM},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def token_of(api: Api, server: str, pod: Manifest) -> str:
    """Return a token of the agent's account as the kubelet gets it for `pod`."""
    metadata = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    address = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{ACCOUNT}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [server], "boundObjectRef": bound},
    }
    token: str = api.request("POST", address, request)["status"]["token"]
    return token


def kubeconfig(folder: Path, plane: ControlPlane, token: str) -> Path:
    """Write a kubeconfig for the holder of `token`."""
    authority = base64.b64encode(plane.authority.certificate.read_bytes()).decode()
    cluster = {"server": plane.server, "certificate-authority-data": authority}
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "agent", "user": {"token": token}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "agent"}}],
                "current-context": "here",
            }
        )
    )
    return path


@dataclass
class NodeAgent:
    """The agent of a node, as a process."""

    plane: ControlPlane
    node: str
    kubelet_root: Path
    cdi: Path
    before: Sequence[str] = ()
    """Words before its command."""
    at_work: str = "serving the kubelet"
    """What it says when it is."""
    folder: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tl-"))
        self.store = Path("/dev/shm") / f"tierline-test-{uuid4().hex}"  # noqa: S108 - a tmpfs
        lay_out(self.bundle)

    @property
    def bundle(self) -> Path:
        """What its image would bring for pods."""
        return self.folder / "opt" / version("tierline")

    def configure(self, kubeconfig: Path) -> None:
        """Write the settings; it speaks to the API server by `kubeconfig`."""
        self.kubeconfig = kubeconfig
        values = {
            "state_dir": str(self.folder / "state"),
            "run_dir": str(self.folder / "run"),
            "node_name": self.node,
            "device": {
                "kind": "cpu",
                "fast_bytes": FAST_EXTENTS * EXTENT_BYTES,
                "extent_bytes": EXTENT_BYTES,
            },
            "tiers": [{"name": "dram", "path": str(self.store), "size_bytes": 16 << 20}],
            "kubernetes": {
                "plugin_dir": str(self.kubelet_root / "plugins" / "tierline.io"),
                "registry_dir": str(self.kubelet_root / "plugins_registry"),
                "cdi_dir": str(self.cdi),
                "pods_dir": str(self.pods),
                "library_dir": str(self.folder / "lib"),
                "bundle_dir": str(self.folder / "opt"),
                "report_period_s": 0.5,
            },
        }
        (self.folder / "agent.json").write_text(json.dumps(values))

    @property
    def pods(self) -> Path:
        """Where the pods' folders are."""
        return self.folder / "pods"

    @property
    def log(self) -> str:
        """What it said."""
        return (self.folder / "agent.log").read_text()

    def start(self) -> None:
        """Start it, and wait until its node's claims were read and it is at work."""
        said = self._said(self.at_work)
        self._launch()
        self._await(self.at_work, said)

    def hand_over(self) -> None:
        """Start another one, which waits; then end the first, and let the other take over."""
        assert self.process is not None
        file = self.folder / "agent.json"
        values = json.loads(file.read_text())
        values["kubernetes"]["hand_over"] = True
        file.write_text(json.dumps(values))
        before = self.process
        waited, worked = self._said("standing by"), self._said(self.at_work)
        self._launch()
        self._await("standing by", waited)
        assert before.poll() is None
        assert self.call("tasks")["ok"], "the first one serves"
        before.send_signal(signal.SIGTERM)
        assert before.wait(PATIENCE_S) == 0
        self._await(self.at_work, worked)

    def _said(self, words: str) -> int:
        return self.log.count(words) if self.process else 0

    def _launch(self) -> None:
        self.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)  # a pod gets it with its mount
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(*self.before, sys.executable, "-m", "tierline_agent"),
                    *("--config", str(self.folder / "agent.json")),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            )

    def _await(self, words: str, before: int) -> None:
        """Wait until the agent says so once more."""

        def says() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return self._said(words) > before

        try:
            wait_until(f"the agent is not {words}", says, timeout_s=PATIENCE_S)
        except ClusterError as error:
            raise AssertionError(self.log) from error

    def revive(self) -> None:
        """Have it at work, however a test left it."""
        if self.process is not None and self.process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """SIGKILL it."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it in good order; returns its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)

    def remove(self) -> None:
        """End it and take everything away."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.store.unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask the administrator's socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(PATIENCE_S)
            admin.connect(str(self.folder / "run" / "admin.sock"))
            admin.sendall(json.dumps({"method": method, **arguments}).encode() + b"\n")
            with admin.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        return answer

    @property
    def tasks(self) -> set[str]:
        """The claims that are registered with it."""
        return {task["name"] for task in self.call("snapshot")["snapshot"]["tasks"]}

    @property
    def described(self) -> set[str]:
        """The claims that are described to the container runtime."""
        start, end = "tierline.io-claim-", ".json"
        return {
            path.name.removeprefix(start).removesuffix(end)
            for path in self.cdi.glob(f"{start}*{end}")
        }

    @property
    def folders(self) -> set[str]:
        """The claims that have a folder."""
        return {path.name for path in self.pods.iterdir()} if self.pods.is_dir() else set()

    def traces(self) -> set[str]:
        """The claims of which anything is here."""
        return self.tasks | self.described | self.folders


def node_agent(plane: ControlPlane, node: Node) -> NodeAgent:
    """The agent of the cluster's node, configured and not started."""
    # A pod for which the kubelet finds no driver is tried again after more than a minute.
    known = "the kubelet has registered the driver"
    agent = NodeAgent(
        plane,
        node.name,
        node.kubelet_root,
        node.outside(CDI),
        cgroups.entering(node.group),
        at_work=known,
    )
    pod = plane.api.create(agent_pod(node.name))
    token = token_of(plane.api, plane.server, pod)
    agent.configure(kubeconfig(agent.folder, plane, token))
    return agent
