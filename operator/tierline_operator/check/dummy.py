"""The task that a check runs on a node: manifests, and why it does not run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tierline_api.objects.optin import TASK
from tierline_kube.resource import MEMPROFILE, MEMTASK, POD, Json

PROGRAM: Final = """\
import os, time
from tierline_client import Client
client = Client(os.environ["TIERLINE_SOCKET"], "check")
now = time.monotonic_ns()
client.job_end(client.job_begin(None, now, now + 10**10))
print("one job was granted, and has ended")
"""
_BYTES: Final = 4096


@dataclass(frozen=True)
class Dummy:
    """A task of one job, for one node of a pool."""

    name: str
    namespace: str
    node: str
    device: Json
    """As the MemNode names it."""
    agents: Json
    """The DaemonSet of the pool: the task has its image, which is there, and its tolerations."""

    def manifests(self) -> tuple[tuple[Any, Json], ...]:
        """Objects to be made, in this order."""
        kind = self.device["kind"]
        layer = {"name": "layer0", "bytes": _BYTES, "computeTime": "1ms"}
        profile = {
            "device": {"kind": kind, "product": self.device["product"]},
            "layers": [layer],
            "workspace": "0",
        }
        task = {
            # A full cluster has room for it: it is promised no time.
            "realtime": {"period": "10s", "criticality": "BestEffort"},
            "memory": {"budget": "64Mi"},
            "device": {"kind": kind},
        }
        return (
            (MEMPROFILE, self._object(MEMPROFILE, profile)),
            (MEMTASK, self._object(MEMTASK, task)),
            (POD, self._object(POD, self._pod()) | {"metadata": self._opted_in()}),
        )

    def _object(self, resource: Any, spec: Json) -> Json:
        return {
            "apiVersion": resource.group_version,
            "kind": resource.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        }

    def _opted_in(self) -> Json:
        return {
            "name": self.name,
            "namespace": self.namespace,
            "annotations": {TASK: self.name},
        }

    def _pod(self) -> Json:
        of = self.agents["spec"]["template"]["spec"]
        agent = of["containers"][0]
        on_node = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        required = {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        return {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            },
            "tolerations": of.get("tolerations") or [],
            "imagePullSecrets": of.get("imagePullSecrets") or [],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "check",
                    "image": agent["image"],
                    "imagePullPolicy": agent.get("imagePullPolicy", "IfNotPresent"),
                    "command": ["python", "-c", PROGRAM],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        }


def why_not(pod: Json) -> str:
    """Why a pod's containers do not run, in the words of the kubelet or of the program itself."""
    status = pod.get("status") or {}
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        states = one.get("state") or {}, one.get("lastState") or {}
        ended: Json = next((state["terminated"] for state in states if "terminated" in state), {})
        if ended.get("exitCode") and ended.get("message", "").strip():
            return f"it ended with {ended['exitCode']}: {ended['message'].strip().splitlines()[-1]}"
        waiting = states[0].get("waiting") or {}
        if waiting.get("reason", "ContainerCreating") != "ContainerCreating":
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    scheduled: Json = next(
        (c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), {}
    )
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}"
    return f"it is {status.get('phase') or 'not there'}"
