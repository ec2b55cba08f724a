"""Tierline on the cluster as its chart installs it, with the images as they were built."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.gpu_e2e.carried import Carried
from tests.gpu_e2e.tasks import wait_for

from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.node import Node

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

    def install(self, given: Mapping[str, Any], timeout_s: float) -> None:
        """`helm install`; returns when operator and agent are ready and the device is published."""
        file = self._node.folder / "values.json"
        file.write_text(json.dumps(given))
        self._helm(
            "install", "tierline", self._carried.chart, "--create-namespace", "--values", file
        )
        wait_for("the release is ready", self.ready, timeout_s)
        self.api.wait(self.memnode, lambda one: (one.get("status") or {}).get("devices"), timeout_s)

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

    def log(self, pod: Manifest) -> str:
        """What a pod has said."""
        return str(self.api.request("GET", self.api.address(pod, subresource="log")))

    def _helm(self, *arguments: str | Path) -> None:
        home = self._node.folder / "helm"
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment |= {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
        of = ("--namespace", SYSTEM, "--kubeconfig", str(self._plane.kubeconfig))
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
