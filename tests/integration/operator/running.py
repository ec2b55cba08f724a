"""A running operator, and what users and agents do around it, on a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.chart.helm import SYSTEM, rights
from tests.integration.policies import apply_policies

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.optin import GATE, POD_CLAIM, TASK
from tierline_api.schema.metadata import label_value
from tierline_cluster.api import Manifest
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.versions import REPOSITORY

_T = TypeVar("_T")

USER = "system:serviceaccount:tierline-system:tierline-operator"
QUICK = {"LEASE_DURATION_S": "12", "RENEW_DEADLINE_S": "10", "RETRY_PERIOD_S": "0.2"}
"""Quick to take over, and still patient with a machine that does other things as well."""
ALONE = {**QUICK, "LEASE_DURATION_S": "60", "RENEW_DEADLINE_S": "50"}
"""Nobody takes over from it: it ends when it cannot renew, and nothing starts it again."""


def prepare(plane: ControlPlane, operators: Iterable[Manifest] | None = None) -> None:
    """What the chart installs except the operator: namespace, DeviceClass, policies, its rights."""
    plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    apply_policies(plane)
    for manifest in rights("operator") if operators is None else operators:
        plane.api.apply(manifest)


class Nursery:
    """Starts operators (nursery.py), all of them by the command `before`."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.integration.operator.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )

    def start(self, environment: dict[str, str], log: Path) -> int:
        """Start one; returns its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"environment": environment, "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Start no more."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@dataclass
class Operator:
    """An operator process."""

    plane: ControlPlane
    nursery: Nursery
    folder: Path
    name: str
    settings: dict[str, str] = field(default_factory=dict)
    kubeconfig: Path | None = None
    """Another way to the API server than straight to it."""
    pid: int | None = None

    def start(self) -> Operator:
        """Start it; it seeks the lead."""
        given = {
            "IDENTITY": self.name,
            "METRICS_PORT": "0",
            "HEALTH_PORT": "0",
            "LOG_FORMAT": "text",
            **QUICK,
            **self.settings,
        }
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TIERLINE_")},
            "KUBECONFIG": str(self.kubeconfig or self.plane.kubeconfig_for(USER)),
            **{f"TIERLINE_OPERATOR_{name}": value for name, value in given.items()},
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self.pid = self.nursery.start(environment, self.log)
        return self

    @property
    def log(self) -> Path:
        """Where it writes."""
        return self.folder / f"{self.name}.log"

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        if self.pid is None:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """End it at once, as a lost machine does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it where it stands."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> None:
        """Wait for its end."""
        until(f"{self.name} ends", lambda: not self.runs)
        self.pid = None

    def revive(self) -> None:
        """Have it run, however a test left it."""
        if self.runs:
            self.resume()
        else:
            self.start()

    def _end(self, how: signal.Signals) -> None:
        if self.pid is not None and self.runs:
            os.kill(self.pid, how)
            self.wait()

    def leads(self) -> bool:
        """Whether the Lease is its own."""
        lease = {"metadata": {"name": "tierline-operator", "namespace": SYSTEM}}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        if not self.plane.api.exists(kind | lease):
            return False
        return bool(self.plane.api.get(kind | lease)["spec"].get("holderIdentity") == self.name)


def until(what: str, holds: Callable[[], _T | None], timeout_s: float = 90) -> _T:
    """Wait for a condition that is not about one object; returns what was seen of it.

    A second look may see something else.
    """
    deadline = time.monotonic() + timeout_s
    while not (seen := holds()):
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.05)
    return seen


class User:
    """What is done in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace

    def node(self, made: MemNode) -> Manifest:
        """Publish a MemNode as its agent does: the object, then its status. Its Node is there."""
        if not self.api.exists(named_worker(made.name)):
            self.worker(made.name)
        manifest = made.to_api()
        status = manifest.pop("status")
        found: Manifest = self.api.apply(manifest)
        return self.api.merge(found, {"status": status}, subresource="status")

    def worker(self, name: str, *, pods: int = 0, ready: str = "True", **spec: Any) -> Manifest:
        """A Node of the cluster as a kubelet would report it, with `pods` slots for pods.

        Without slots kube-scheduler leaves every pod where it is.
        """
        slots = {"cpu": "8", "memory": "16Gi", "pods": str(pods)}
        manifest = named_worker(name)
        manifest["metadata"]["labels"] = {"kubernetes.io/hostname": label_value(name)}
        self.api.apply(manifest)
        # The API server taints a new Node as not ready, and nobody here would take that away.
        whole = {"taints": None, "unschedulable": None, **spec}
        found = self.api.merge(manifest, {"spec": whole})
        condition = {"type": "Ready", "status": ready, "reason": "Test", "message": "as told"}
        status = {"capacity": slots, "allocatable": slots, "conditions": [condition]}
        return self.api.merge(found, {"status": status}, subresource="status")

    def apply(self, made: MemTask | MemProfile | MemQuota) -> Manifest:
        """Apply an object of Tierline's own kinds in the namespace."""
        manifest = made.to_api()
        manifest.pop("status", None)
        metadata = manifest["metadata"]
        manifest["metadata"] = {
            "name": metadata["name"],
            "namespace": self.namespace,
            **{k: metadata[k] for k in ("labels", "annotations") if metadata.get(k)},
        }
        return self.api.apply(manifest)

    def pod(self, name: str, task: str, **annotations: str) -> Manifest:
        """Create a pod as it is after the admission policy."""
        return self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": self.namespace,
                    "labels": {TASK: task},
                    "annotations": {
                        TASK: task,
                        **{f"tierline.io/{k}": v for k, v in annotations.items()},
                    },
                },
                "spec": {
                    "schedulingGates": [{"name": GATE}],
                    "terminationGracePeriodSeconds": 0,
                    "resourceClaims": [{"name": POD_CLAIM, "resourceClaimTemplateName": task}],
                    "containers": [
                        {
                            "name": "main",
                            "image": "none",
                            "resources": {"claims": [{"name": POD_CLAIM}]},
                        }
                    ],
                },
            }
        )

    def plain_pod(self, name: str, task: str) -> Manifest:
        """A pod as a user writes it, with nothing but the annotation."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {TASK: task},
            },
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }

    def wait_for_policies(self) -> None:
        """Wait until the API server has seen the admission policies."""
        probe = self.plain_pod("probe", "m")

        def gated() -> object:
            return self.api.create(probe, dry_run=True)["spec"].get("schedulingGates")

        until("the admission policies work", gated)

    def task(self, name: str) -> Manifest:
        """How to name a MemTask."""
        return {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": name, "namespace": self.namespace},
        }

    def profile(self, name: str) -> Manifest:
        """How to name a MemProfile."""
        return self.task(name) | {"kind": "MemProfile"}

    def named_pod(self, name: str) -> Manifest:
        """How to name a pod."""
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}

    def wait_task(self, name: str, reason: str, kind: str = "Admitted") -> Manifest:
        """Wait until the condition of a task has that reason for its present spec."""

        def said(found: Manifest) -> bool:
            known = conditions(found).get(kind, {})
            current = known.get("observedGeneration") == found["metadata"]["generation"]
            return known.get("reason") == reason and current

        return self.api.wait(self.task(name), said)

    def wait_placed(self, pod: str) -> tuple[str, str]:
        """Wait until a pod's claim is allocated and its gate is gone; returns node and device."""
        self.api.wait(self.named_pod(pod), lambda found: not found["spec"].get("schedulingGates"))
        claim = self.claim_of(pod)
        assert claim is not None
        place = placed(claim)
        assert place is not None, "no pod leaves its gate before its claim is allocated"
        return place

    def claim_of(self, pod: str) -> Manifest | None:
        """The claim of a pod, once the controller has made it."""
        for claim in self.claims():
            owners = claim["metadata"].get("ownerReferences", ())
            if any(owner["name"] == pod for owner in owners):
                return claim
        return None

    def observe(self, pod: str, **observed: Any) -> None:
        """Write into a pod's claim what its agent would of its jobs."""
        claim = self.claim_of(pod)
        assert claim is not None
        [result] = claim["status"]["allocation"]["devices"]["results"]
        shared = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
        device = shared | {"data": {"observed": observed}}
        self.api.merge(claim, {"status": {"devices": [device]}}, subresource="status")

    def claims(self) -> list[Manifest]:
        """All claims of the namespace."""
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        found = self.api.list(kind["apiVersion"], kind["kind"], self.namespace)
        return [kind | claim for claim in found]

    def delete_pod(self, name: str) -> None:
        """Delete a pod, and do what the kubelet of its node would do."""
        self.api.delete(self.named_pod(name), gracePeriodSeconds=0)
        self.api.wait_gone(self.named_pod(name))

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and note of the events about an object."""
        found = self.api.list("events.k8s.io/v1", "Event", self.namespace)
        return [
            (event["reason"], event.get("note", ""))
            for event in found
            if event["regarding"]["name"] == name
            and event["reportingController"] == "tierline.io/operator"
        ]


def named_worker(name: str) -> Manifest:
    """How to name a Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def conditions(found: Manifest) -> dict[str, Any]:
    """The conditions of an object by type."""
    return {c["type"]: c for c in (found.get("status") or {}).get("conditions", ())}


def placed(claim: Manifest) -> tuple[str, str] | None:
    """Node and device of an allocated claim."""
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return None
    [result] = allocation["devices"]["results"]
    return result["pool"], result["device"]


def memory_in(claim: Manifest) -> dict[str, Any]:
    """The memory that a claim's plan takes: all of it but what is predicted."""
    return {k: v for k, v in plan_in(claim).items() if not k.startswith("predicted")}


def plan_in(claim: Manifest) -> dict[str, Any]:
    """The plan that an agent reads from a claim."""
    value: dict[str, Any] = json.loads(claim["metadata"]["annotations"]["tierline.io/plan"])
    return value
