"""MemTasks of the run: what an administrator and a user apply, and what can be seen of them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.gpu_e2e.machine import PROGRAMS

from tierline_cluster.api import Api, ApiError, Manifest

API: Final = "tierline.io/v1alpha1"
NAMESPACE: Final = "models"
_JOB: Final = re.compile(r"^(\S+) job (\d+) ([0-9a-f]{32}) (\d+\.\d+)( late)?$")
_BUDGET: Final = "16Gi"
_DRIVER: Final = "/driver"
_FATAL: Final = frozenset({"ErrImageNeverPull", "CreateContainerConfigError", "RunContainerError"})
_STARTS_AGAIN: Final = 75
"""How a program ends that has been measured, to run by its plan."""


@dataclass(frozen=True)
class Wanted:
    """A task of the run."""

    name: str
    model: str
    period_s: float


@dataclass(frozen=True)
class Job:
    """What a program printed of a job."""

    ended_s: float
    """Seconds since the epoch."""
    index: int
    digest: str
    response_s: float
    """From its release to its output."""
    late: bool


class Tasks:
    """The tasks, in a namespace that enforces PodSecurity `restricted`."""

    def __init__(self, api: Api, kind: str, folders: Sequence[Path], driver: Path | None) -> None:
        """`folders` of the machine, and that of the `driver`, are shown to pods read-only."""
        self.api = api
        self._kind = kind
        self._driver = driver
        self._shown = {folder: str(folder) for folder in folders}
        """By folder of the machine: where pods have it."""
        if driver:
            self._shown[driver] = _DRIVER

    def prepare(self) -> None:
        """Make the namespace, and the volumes that show the machine's Python to its pods."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.api.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": labels},
            }
        )
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        for number, folder in enumerate(self._shown):
            name = f"machine-{number}"
            volume = {
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": NAMESPACE, "name": name},
            }
            claim = {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
            self._apply("v1", "PersistentVolume", name, spec={**common, **volume})
            self._apply("v1", "PersistentVolumeClaim", name, NAMESPACE, spec={**common, **claim})

    def apply(self, wanted: Wanted) -> None:
        """Apply a MemTask with a template that makes its pod."""
        self._apply(
            API,
            "MemTask",
            wanted.name,
            NAMESPACE,
            spec={
                "realtime": {"period": f"{round(wanted.period_s * 1e3)}ms"},
                "memory": {"budget": _BUDGET},
                # What its deadline needs, and no more: all of them are to run at once.
                "swap": {"policy": "Stream", "tiers": ["dram"]},
                "device": {"kind": self._kind},
                "profile": wanted.model,
                "template": {
                    "metadata": {"labels": {"app": wanted.name}},
                    "spec": self._pod(wanted),
                },
            },
        )

    def _pod(self, wanted: Wanted) -> Manifest:
        names = [f"machine-{number}" for number in range(len(self._shown))]
        claims = [{"claimName": name, "readOnly": True} for name in names]
        variables = {"LD_LIBRARY_PATH": _DRIVER} if self._driver else {}
        container = {
            "name": "program",
            "image": PROGRAMS,
            "imagePullPolicy": "Never",
            "workingDir": "/programs",
            "command": [
                *(sys.executable, "-m", "tests.gpu_e2e.program", wanted.model),
                *("--period", str(wanted.period_s)),
            ],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
                *(
                    {"name": name, "mountPath": place, "readOnly": True}
                    for name, place in zip(names, self._shown.values(), strict=True)
                ),
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "containers": [container],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                *(
                    {"name": name, "persistentVolumeClaim": claim}
                    for name, claim in zip(names, claims, strict=True)
                ),
            ],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
        }

    # -- what becomes of them

    def wait_measured(self, model: str, timeout_s: float) -> Manifest:
        """Wait for the profile of a model; returns it."""
        named = _named("MemProfile", model)
        wait_for(
            f"{model} is measured", lambda: self._sound() and self.api.exists(named), timeout_s
        )
        return self.api.get(named)

    def wait(self, name: str, timeout_s: float, **reasons: str) -> Manifest:
        """Wait until conditions of a task (by type) have these reasons; returns the task."""

        def said(found: Manifest) -> bool:
            self._sound()
            seen = conditions(found)
            return all(seen.get(kind) == why for kind, why in reasons.items())

        return self.api.wait(_named("MemTask", name), said, timeout_s)

    def _sound(self) -> bool:
        """Raise SystemExit if a pod cannot go on: then there is nothing to wait for."""
        for pod in self.api.list("v1", "Pod", NAMESPACE):
            for status in pod["status"].get("containerStatuses", ()):
                waiting = status["state"].get("waiting", {}).get("reason", "")
                states = (status["state"], status.get("lastState", {}))
                codes = {one["terminated"]["exitCode"] for one in states if "terminated" in one}
                if waiting in _FATAL or codes - {_STARTS_AGAIN}:
                    name = pod["metadata"]["name"]
                    raise SystemExit(f"the pod {name} cannot go on: {json.dumps(status)}")
        return True

    def wait_jobs(self, name: str, count: int, timeout_s: float) -> None:
        """Wait until the pod of a task has run so many jobs since it started."""
        wait_for(
            f"{name} has run {count} jobs",
            lambda: self._sound() and len(self.jobs(name)) >= count,
            timeout_s,
        )

    def wait_caught_up(self, name: str, since_s: float, timeout_s: float) -> None:
        """Wait until two jobs in a row that ended after this moment were in time."""

        def caught_up() -> bool:
            last = [job for job in self.jobs(name) if job.ended_s > since_s][-2:]
            return self._sound() and len(last) == 2 and not any(job.late for job in last)

        wait_for(f"{name} has caught up", caught_up, timeout_s)

    def delete(self, name: str, timeout_s: float) -> None:
        """Delete a MemTask; it and its pods are gone when this returns."""
        self.api.delete(_named("MemTask", name), propagationPolicy="Foreground")
        self.api.wait_gone(_named("MemTask", name), timeout_s)
        wait_for(f"pods of {name} are gone", lambda: not self.pods(name), timeout_s)

    def found(self, name: str) -> Manifest:
        """The MemTask as it is now."""
        return self.api.get(_named("MemTask", name))

    def pods(self, app: str) -> list[Manifest]:
        """The pods of a task."""
        return self.api.list("v1", "Pod", NAMESPACE, labelSelector=f"app={app}")

    def identity(self, app: str) -> tuple[str, int, str]:
        """The one pod of a task: its uid, how often its container started again, the container."""
        (pod,) = self.pods(app)
        (status,) = pod["status"]["containerStatuses"]
        return pod["metadata"]["uid"], status["restartCount"], status.get("containerID", "")

    def log(self, app: str) -> str:
        """What the container of a task's pod has said since it started, with times."""
        (pod,) = self.pods(app)
        address = self.api.address({"apiVersion": "v1", "kind": "Pod", **pod}, subresource="log")
        return str(self.api.request("GET", address, timestamps="true"))

    def jobs(self, app: str) -> list[Job]:
        """The jobs of a task's pod."""
        return jobs_in(self.log(app))

    def about(self, app: str) -> dict[str, Any]:
        """What the program said of itself."""
        lines = (line.partition(" ")[2] for line in self.log(app).splitlines())
        return next((json.loads(line) for line in lines if line.startswith('{"model"')), {})

    def describe(self) -> str:
        """Everything about them, to find out why a run failed."""
        kinds = [(API, "MemTask"), (API, "MemProfile"), ("v1", "Pod"), ("v1", "Event")]
        kinds += [("resource.k8s.io/v1", "ResourceClaim"), ("v1", "PersistentVolumeClaim")]
        found = {kind: self.api.list(version, kind, NAMESPACE) for version, kind in kinds}
        found["MemNode"] = self.api.list(API, "MemNode")
        found["ResourceSlice"] = self.api.list("resource.k8s.io/v1", "ResourceSlice")
        for group in found.values():
            for manifest in group:
                manifest["metadata"].pop("managedFields", None)
        return json.dumps(found, indent=1)

    def _apply(self, version: str, kind: str, name: str, namespace: str = "", **rest: Any) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
        self.api.apply(manifest)


def jobs_in(log: str) -> list[Job]:
    """The jobs that a program's log, with times, tells of."""
    found = (_JOB.match(line) for line in log.splitlines())
    return [
        Job(_seconds(one[1]), int(one[2]), one[3], float(one[4]) / 1e3, bool(one[5]))
        for one in found
        if one
    ]


def conditions(found: Manifest) -> dict[str, str]:
    """The reasons of an object's conditions, by type."""
    said = found.get("status", {}).get("conditions", [])
    return {one["type"]: one["reason"] for one in said}


def wait_for(what: str, condition: Callable[[], object], timeout_s: float) -> None:
    """Wait until `condition` holds; raises TimeoutError. A refused question is asked again."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (ApiError, OSError) as error:
            print(f"{what}: {error}", file=sys.stderr)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.2)


def _named(kind: str, name: str) -> Manifest:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
    }


def _seconds(moment: str) -> float:
    # The kubelet writes nanoseconds; Python reads six digits of them.
    whole, _, rest = moment.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6] or '0'}+00:00").timestamp()
