"""Tierline on the cluster as its chart installs it, with the images as they were built."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.tasks import wait_for

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.node import Node
from tierline_cluster.processes import processes_of

SYSTEM: Final = "tierline-system"
AGENTS: Final = "app.kubernetes.io/component=agent"
OPERATORS: Final = "app.kubernetes.io/component=operator"
_CDI: Final = "/var/run/cdi"


def values(
    node: Node, device: Mapping[str, Any], extent: str, tier: str, driver: Path | None
) -> dict[str, Any]:
    """The chart's values for one node with this device."""
    kind, chosen = next(iter(device.items()))
    folder = {"driverDir": str(driver)} if driver else {}
    pool = {
        "devices": {kind: {**chosen, **folder}},
        "extentSize": extent,
        "tiers": {"dram": {"path": "/run/tierline/dram", "size": tier}},
    }
    return {
        "operator": {"image": {"pullPolicy": "Never"}, "replicas": 1},
        "agent": {
            "image": {"pullPolicy": "Never"},
            "handOver": True,
            "kubeletDir": str(node.kubelet_root),
            "cdiDir": _CDI,
            "pools": {"default": None, "machine": pool},
        },
        "crds": {"keep": False},
    }


class Release:
    """The release on a cluster of one node."""

    def __init__(self, carried: Carried, plane: ControlPlane, node: Node) -> None:
        """Prepare it; nothing is installed yet."""
        self.api = plane.api
        self._carried, self._plane, self._node = carried, plane, node
        self._given: dict[str, Any] = {}

    def install(self, given: dict[str, Any], timeout_s: float) -> None:
        """`helm install`; returns when operator and agent are ready and the device is published."""
        self._given = given
        self._helm("install", "tierline", self._carried.chart, "--create-namespace", given=given)
        wait_for("the release is ready", self.ready, timeout_s)
        self.api.wait(self.memnode, lambda one: (one.get("status") or {}).get("devices"), timeout_s)

    def upgrade(self, tag: str, timeout_s: float) -> str:
        """`helm upgrade` to the same images by another tag; returns when all pods are new ones.

        Until the previous agent ends, both run. Returns all that the previous one said.
        """
        for part in ("operator", "agent"):
            name = f"localhost/tierline-{part}"
            (tagged,) = (
                one
                for one in self._node.ctr("images", "list", "--quiet").split()
                if one.startswith(f"{name}:")
            )
            self._node.ctr("images", "tag", tagged, f"{name}:{tag}")
            self._given[part]["image"]["tag"] = tag
        before = {pod["metadata"]["uid"] for pod in self.pods()}
        (agent,) = self.pods(AGENTS)

        def replaced() -> bool:
            return not before & {pod["metadata"]["uid"] for pod in self.pods()} and self.ready()

        with ThreadPoolExecutor(1) as meanwhile:
            said = meanwhile.submit(self.log, agent, follow="true")  # it goes with the pod
            self._helm("upgrade", "tierline", self._carried.chart, given=self._given)
            wait_for("all pods are replaced", replaced, timeout_s)
            return said.result(timeout_s)

    def kill_agent(self, timeout_s: float) -> str:
        """SIGKILL the agent's process; returns, when another is ready, what the killed one said."""
        (before,) = self.pods(AGENTS)
        said = self.log(before)
        (process,) = processes_of("tierline_agent", self._node.group)
        os.kill(process, signal.SIGKILL)

        def again() -> bool:
            (agent,) = self.pods(AGENTS)
            return _starts(agent) > _starts(before) and self.ready()

        wait_for("the agent was started again", again, timeout_s)
        return said

    def uninstall(self, timeout_s: float) -> None:
        """`helm uninstall`; its pods are gone when this returns."""
        self._helm("uninstall", "tierline", "--wait", f"--timeout={timeout_s:.0f}s")
        wait_for("pods of the release are gone", lambda: not self.pods(), timeout_s)

    @property
    def memnode(self) -> Manifest:
        """How to name the MemNode."""
        return {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemNode",
            "metadata": {"name": self._node.name},
        }

    def ready(self) -> bool:
        """Whether operator and agent are ready."""
        operators, agents = self.pods(OPERATORS), self.pods(AGENTS)
        return bool(operators and agents) and all(map(is_ready, [*operators, *agents]))

    def pods(self, selector: str = "app.kubernetes.io/name=tierline") -> list[Manifest]:
        """The pods of the release, or those of a part."""
        found = self.api.list("v1", "Pod", SYSTEM, labelSelector=selector)
        return [{"apiVersion": "v1", "kind": "Pod", **one} for one in found]

    def log(self, pod: Manifest, **how: str) -> str:
        """What a pod has said."""
        return str(self.api.request("GET", self.api.address(pod, subresource="log"), **how))

    def _helm(self, *arguments: str | Path, given: Mapping[str, Any] | None = None) -> None:
        home = self._node.folder / "helm"
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment |= {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
        of = ["--namespace", SYSTEM, "--kubeconfig", str(self._plane.kubeconfig)]
        if given is not None:
            file = self._node.folder / "values.json"
            file.write_text(json.dumps(given))
            of += ["--values", str(file)]
        done = subprocess.run(
            [self._carried.helm, *arguments, *of],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"helm {arguments[0]}: {done.stderr}")


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready, and is to stay."""
    said = pod["status"].get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in said
    )


def _starts(pod: Manifest) -> int:
    """How often its container was started again."""
    (status,) = pod["status"]["containerStatuses"]
    return int(status["restartCount"])
