"""MemTasks in one namespace, their profiles and pods, and what they say of themselves.

A task's program (tests/e2e/program.py) reads every byte of its weights in each job, and says
whether they were the right ones. It has far longer for a job than a job takes, so that a slow
machine misses no deadline.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.e2e.product.release import EXTENT_BYTES, PATIENCE_S, Release, ready
from tests.e2e.python_image import PROGRAM, PYTHON
from tests.integration.operator.running import conditions, until

from tierline_agent.devices.cpu import processor_name
from tierline_api.objects.optin import TASK
from tierline_cluster.api import Manifest

API: Final = "tierline.io/v1alpha1"
EXTENTS: Final = 12
"""Extents of a task's weights: more than the node has fast memory for."""
DEFAULT_EXTENT_BYTES: Final = 4 << 20
"""Of the chart, for the device cpu."""
_PERIOD: Final = "20s"
_APPS: Final = "apps/v1"


class Tasks:
    """The tasks of a namespace."""

    def __init__(self, release: Release, namespace: str, extent_bytes: int = EXTENT_BYTES) -> None:
        """Prepare it, on nodes with such extents; nothing is made yet."""
        self.release = release
        self.api = release.api
        self.namespace = namespace
        self._extent_bytes = extent_bytes

    # -- what users apply

    def apply(
        self, name: str, *, extents: int = EXTENTS, policy: str = "Stream", **spec: Any
    ) -> Manifest:
        """Apply a MemTask and its profile."""
        self.api.apply(self._profile(name, extents))
        wanted = {
            "realtime": {"period": _PERIOD},
            "memory": {"budget": "64Mi"},
            "swap": {"policy": policy, "tiers": ["dram"]},
            "device": {"kind": "cpu"},
            **spec,
        }
        return self.api.apply(self.named(name) | {"spec": wanted})

    def apply_with_pods(self, name: str, *, extents: int = EXTENTS, policy: str = "Stream") -> None:
        """Apply a MemTask with a template that makes its pod."""
        template = {"metadata": {"labels": {"app": name}}, "spec": pod_spec(extents)}
        self.apply(name, extents=extents, policy=policy, template=template)

    def deployment(self, name: str, task: str | None) -> Manifest:
        """Create a Deployment of one pod that opts in to `task`, if that is given."""
        labels = {"app": name}
        annotations = {TASK: task} if task else {}
        spec = pod_spec(EXTENTS)
        if task is None:
            spec["containers"][0]["command"] = [
                "/bin/python3",
                "-c",
                "import time; time.sleep(86400)",
            ]
        return self.api.create(
            {
                "apiVersion": _APPS,
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "replicas": 1,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels, "annotations": annotations},
                        "spec": spec,
                    },
                },
            }
        )

    def delete(self, name: str) -> None:
        """Delete a MemTask; it and its pods are gone when this returns."""
        self.api.delete(self.named(name), propagationPolicy="Foreground")
        self.api.wait_gone(self.named(name), PATIENCE_S)
        until("pods are left", lambda: not self.pods(name), PATIENCE_S)

    # -- what they see

    def named(self, name: str) -> Manifest:
        """How to name a MemTask."""
        return {
            "apiVersion": API,
            "kind": "MemTask",
            "metadata": {"name": name, "namespace": self.namespace},
        }

    def wait(self, name: str, *, within_s: float = PATIENCE_S, **wanted: str) -> Manifest:
        """Wait until conditions of a task (by type) have these reasons; returns the task."""

        def said(found: Manifest) -> bool:
            seen = conditions(found)
            return all(seen.get(kind, {}).get("reason") == why for kind, why in wanted.items())

        return self.api.wait(self.named(name), said, within_s)

    def pods(self, app: str) -> list[Manifest]:
        """Return the pods with the label `app`."""
        found = self.api.list("v1", "Pod", self.namespace, labelSelector=f"app={app}")
        return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]

    def wait_running(self, app: str) -> Manifest:
        """Wait until the one pod of `app` is ready; returns it."""

        def running() -> Manifest | None:
            found = self.pods(app)
            return found[0] if [*map(ready, found)] == [True] else None

        return until(f"a pod of {app} is ready", running, PATIENCE_S)

    def jobs(self, app: str) -> int:
        """How many jobs the pod of `app` has run since it started; all must have been right."""
        (pod,) = self.pods(app)
        said = self.api.request("GET", self.api.address(pod, subresource="log"))
        assert "WRONG" not in said, said
        return str(said).count("right")

    def wait_jobs(self, app: str, more: int = 3) -> None:
        """Wait until the pod of `app` has run some more jobs."""
        before = self.jobs(app)
        until(f"{app} runs jobs", lambda: self.jobs(app) >= before + more, PATIENCE_S)

    # -- the end

    def remove_all(self) -> None:
        """Delete everything in the namespace; returns when no pod and no claim is left."""
        for version, kind in ((API, "MemTask"), (API, "MemProfile"), (_APPS, "Deployment")):
            for found in self.api.list(version, kind, self.namespace):
                named = {"apiVersion": version, "kind": kind, **found}
                self.api.delete(named, propagationPolicy="Background")
        for pod in self.api.list("v1", "Pod", self.namespace):
            self.api.delete({"apiVersion": "v1", "kind": "Pod", **pod}, gracePeriodSeconds=1)
        left = ((API, "MemTask"), (API, "MemProfile"), ("v1", "Pod"))
        for api, kind in (*left, ("resource.k8s.io/v1", "ResourceClaim")):
            until(
                f"a {kind} is left",
                lambda api=api, kind=kind: not self.api.list(api, kind, self.namespace),  # type: ignore[misc]
                PATIENCE_S,
            )

    def describe(self) -> str:
        """Everything about the tasks, to find out why a test failed."""
        kinds = ((API, "MemTask"), ("v1", "Pod"), ("resource.k8s.io/v1", "ResourceClaim"))
        found = [self.api.list(*kind, self.namespace) for kind in (*kinds, ("v1", "Event"))]
        for manifest in (one for group in found for one in group):
            manifest["metadata"].pop("managedFields", None)
        return json.dumps(found, indent=1)

    def _profile(self, name: str, extents: int) -> Manifest:
        layer = {"bytes": self._extent_bytes, "computeTime": "20ms"}
        return {
            "apiVersion": API,
            "kind": "MemProfile",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "device": {"kind": "cpu", "product": processor_name()},
                "layers": [{"name": f"layer{n}", **layer} for n in range(extents)],
                "workspace": "0",
            },
        }


def pod_spec(extents: int) -> Manifest:
    """Return the spec of a pod that runs the program, as PodSecurity `restricted` wants it."""
    variables = {"EXTENTS": str(extents), "PERIOD_S": "1", "DEADLINE_S": "20"}
    container = {
        "name": "program",
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "command": ["/bin/python3", PROGRAM],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 1,
    }
