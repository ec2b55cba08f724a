"""Tierline on the test cluster as a user has it: the chart, by Helm, with the images as built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.chart.helm import CHART, RELEASE, SYSTEM, helm
from tests.e2e.conftest import Running
from tests.integration.operator.running import User, until

from tierline_cluster.api import Manifest
from tierline_cluster.node import CDI
from tierline_cluster.versions import REPOSITORY

IMAGES: Final = REPOSITORY / "build" / "images"
PATIENCE_S: Final = 180
EXTENT_BYTES: Final = 1 << 20
FAST_EXTENTS: Final = 8
DRAM_EXTENTS: Final = 64
DRAM: Final = "/run/tierline/dram"
FATAL: Final = frozenset({"CrashLoopBackOff", "ErrImageNeverPull", "CreateContainerConfigError"})
"""Why a container does not start, where waiting is no use."""
_AGENTS: Final = "app.kubernetes.io/component=agent"
_OPERATORS: Final = "app.kubernetes.io/component=operator"


class Release:
    """The release on a cluster of one node."""

    def __init__(self, cluster: Running) -> None:
        """Prepare it; nothing is installed yet."""
        self.cluster = cluster
        self.api = cluster.api
        self._helm_home = cluster.node.folder / "helm"

    @property
    def values(self) -> dict[str, Any]:
        """The chart's values: little memory, so that little is too much."""
        cpu = {"fastMemory": f"{FAST_EXTENTS}Mi"}
        dram = {"path": DRAM, "size": f"{DRAM_EXTENTS}Mi"}
        pool = {"devices": {"cpu": cpu}, "extentSize": "1Mi", "tiers": {"dram": dram, "nvme": None}}
        return {
            "operator": {"image": {"pullPolicy": "Never"}},
            "agent": {
                "image": {"pullPolicy": "Never"},
                "kubeletDir": str(self.cluster.node.kubelet_root),
                "cdiDir": CDI,
                "pools": {"default": pool},
            },
            "crds": {"keep": False},
        }

    def import_images(self) -> None:
        """Give the node both images."""
        for name in ("operator", "agent"):
            archive = IMAGES / f"tierline-{name}.tar"
            assert archive.exists(), f"there is no {archive}; run: make images"
            self.cluster.node.import_image(archive)

    def install(self) -> None:
        """Install it; returns when operator and agent are ready."""
        self._helm("install", RELEASE, CHART, "--create-namespace", values=self.values)
        self.wait_ready()

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Upgrade it to these values."""
        self._helm("upgrade", RELEASE, CHART, values=values)

    def uninstall(self) -> None:
        """Uninstall it; its pods are gone when this returns."""
        self._helm("uninstall", RELEASE, "--wait", f"--timeout={PATIENCE_S}s", "--ignore-not-found")
        until("pods of the release are left", lambda: not self.pods(), PATIENCE_S)

    def wait_ready(self) -> None:
        """Wait until the operator leads, and the node's agent has published what it has."""
        until(f"the release is ready: {self.pods()}", self._ready, PATIENCE_S)
        published = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemNode"}
        name = {"metadata": {"name": self.cluster.node.name}}
        self.api.wait(
            published | name, lambda node: (node.get("status") or {}).get("devices"), PATIENCE_S
        )
        User(self.cluster.plane, "default").wait_for_policies()

    def _ready(self) -> bool:
        operators, agents = self.pods(_OPERATORS), self.pods(_AGENTS)
        for status in (s for p in self.pods() for s in p["status"].get("containerStatuses", ())):
            why = status["state"].get("waiting", {}).get("reason", "")
            assert why not in FATAL, f"{status['image']}: {why}\n{self.logs()}"
        return bool(operators and agents) and all(map(ready, [*operators, *agents]))

    def pods(self, selector: str = "app.kubernetes.io/name=tierline") -> list[Manifest]:
        """Return the pods of the release, or those of a part."""
        return [
            {"apiVersion": "v1", "kind": "Pod", **found}
            for found in self.api.list("v1", "Pod", SYSTEM, labelSelector=selector)
        ]

    @property
    def agent(self) -> Manifest:
        """The agent's pod."""
        (found,) = self.pods(_AGENTS)
        return found

    def operators(self) -> list[Manifest]:
        """The operator's pods."""
        return self.pods(_OPERATORS)

    def logs(self) -> str:
        """What its pods said last, to find out why a test failed."""
        return "\n".join(
            f"--- {pod['metadata']['name']}\n"
            + str(self.api.request("GET", self.api.address(pod, subresource="log"), tailLines="80"))
            for pod in self.pods()
            if pod["status"].get("phase") == "Running"
        )

    def _helm(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> None:
        given = []
        if values is not None:
            file = self.cluster.node.folder / "values.json"
            file.write_text(json.dumps(values))
            given = ["--values", str(file)]
        kubeconfig = self.cluster.plane.kubeconfig
        done = helm(
            *(*arguments, "--namespace", SYSTEM, "--kubeconfig", kubeconfig, *given),
            home=self._helm_home,
        )
        assert done.returncode == 0, done.stderr


def ready(pod: Manifest) -> bool:
    """Whether a pod is ready, and is to stay."""
    conditions = pod["status"].get("conditions", [])
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]
