"""Pods that opt in, and pods with one mistake: the tables that all levels share."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final, NamedTuple

TASK: Final = "tierline.io/task"
LIBRARY: Final = "/run/tierline/libtierline.so"
Manifest = dict[str, Any]


def container(name: str = "app", **more: Any) -> Manifest:
    """Return a container that PodSecurity `restricted` admits."""
    return {
        "name": name,
        "image": "example.local/app:1",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **more,
    }


def pod(
    *containers: Manifest,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """Return a pod; it opts in to the task `camera` unless `annotations` say otherwise."""
    metadata: Manifest = {
        "name": "camera-1",
        "annotations": {TASK: "camera"} if annotations is None else annotations,
    }
    if labels is not None:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers) or [container()],
            # Its volume has a random name, which would make every answer another one.
            "automountServiceAccountToken": False,
            **spec,
        },
    }


def preload(value: str | None) -> Manifest:
    """Return an entry of an environment; without value it takes it from elsewhere."""
    if value is None:
        source = {"configMapKeyRef": {"name": "settings", "key": "preload"}}
        return {"name": "LD_PRELOAD", "valueFrom": source}
    return {"name": "LD_PRELOAD", "value": value}


def only(names: str) -> dict[str, str]:
    """Return annotations that mean single containers."""
    return {TASK: "camera", "tierline.io/containers": names}


def inline(**edits: str) -> dict[str, str]:
    """Return annotations that describe a task: ``inline(period="20ms", execution_time="5ms")``."""
    said = {"period": "50ms", "budget": "1Gi", "device": "cpu"} | edits
    named = {f"tierline.io/{key.replace('_', '-')}": value for key, value in said.items()}
    return {TASK: "camera"} | {key: value for key, value in named.items() if value != ""}


TEMPLATED: Final = {"name": "tierline", "resourceClaimTemplateName": "camera"}
GATE: Final = {"name": "tierline.io/admission"}
MINE: Final = {"name": "tierline"}

GOOD: Final = {
    "one container": pod(),
    "several containers": pod(container("app"), container("log"), container("proxy")),
    "an init container": pod(initContainers=[container("fetch")]),
    "a sidecar": pod(
        initContainers=[container("fetch"), container("mesh", restartPolicy="Always")]
    ),
    "an environment without LD_PRELOAD": pod(container(env=[{"name": "A", "value": "1"}])),
    "an environment from elsewhere": pod(
        container(envFrom=[{"configMapRef": {"name": "settings"}}])
    ),
    "a library of its own": pod(container(env=[preload("/usr/lib/libjemalloc.so")])),
    "two libraries of its own": pod(container(env=[preload("/a.so:/b.so /c.so")])),
    "Tierline's library already": pod(container(env=[preload(f"/a.so:{LIBRARY}")])),
    "a library with a name that goes on": pod(container(env=[preload(f"{LIBRARY}.1")])),
    "an LD_PRELOAD that is empty": pod(container(env=[preload("")])),
    "an LD_PRELOAD that is there twice": pod(
        container(env=[preload("/a.so"), {"name": "B"}, preload("/b.so")])
    ),
    "an LD_PRELOAD that is there twice, from elsewhere first": pod(
        container(env=[preload(None), preload("/b.so")])
    ),
    "an LD_PRELOAD that refers to others": pod(
        container(
            env=[
                {"name": "LIBS", "value": "/opt/lib"},
                preload("$(LIBS)/a.so"),
                {"name": "SHOWN", "value": "$(LD_PRELOAD)"},
            ]
        )
    ),
    "one container meant of two": pod(container("a"), container("b"), annotations=only("b")),
    "two meant of three, with spaces": pod(
        container("a"), container("b"), container("c"), annotations=only(" a ,c")
    ),
    "an init container meant alone": pod(
        container("a"), initContainers=[container("b")], annotations=only("b")
    ),
    "LD_PRELOAD from elsewhere where it is not meant": pod(
        container("a", env=[preload(None)]), container("b"), annotations=only("b")
    ),
    "requests and limits": pod(
        container(resources={"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}})
    ),
    "variables from a ConfigMap": pod(container(envFrom=[{"configMapRef": {"name": "settings"}}])),
    "a GPU for a container that is not meant": pod(
        container("a"),
        container("b", resources={"limits": {"nvidia.com/gpu": "1"}}),
        annotations=only("a"),
    ),
    "claims of its own": pod(
        container(resources={"claims": [{"name": "nic", "request": "port"}]}),
        resourceClaims=[{"name": "nic", "resourceClaimName": "nic-of-node"}],
    ),
    "gates of its own": pod(schedulingGates=[{"name": "example.com/quota"}]),
    "labels of its own": pod(labels={"app": "camera"}),
    "another task's label": pod(labels={TASK: "other"}),
    "the host's network": pod(hostNetwork=True),
    "the host's processes": pod(hostPID=True),
    "a runtime class for GPUs": pod(runtimeClassName="nvidia"),
    "a described task": pod(annotations=inline()),
    "a described task that trains": pod(annotations=inline(training="true", period="")),
    "one that trains, and says so twice": pod(
        annotations=inline(training="true", criticality="BestEffort")
    ),
    "a task described in full": pod(
        annotations=inline(
            deadline="40ms",
            criticality="Soft",
            execution_time="12.5ms",
            reserved="0",
            tiers="nvme, dram",
            policy="Stream",
            on_budget_exceeded="Spill",
            device="cuda",
            model="H200",
            profile="camera-v2",
        )
    ),
    "annotations of others": pod(annotations={TASK: "camera", "example.com/x": "y"}),
    "the gate already": pod(schedulingGates=[GATE]),
    "the claim already, which nobody uses": pod(resourceClaims=[TEMPLATED]),
    "everything already": pod(
        container(env=[preload(LIBRARY)], resources={"claims": [MINE]}),
        labels={TASK: "camera"},
        schedulingGates=[GATE],
        resourceClaims=[TEMPLATED],
    ),
}
"""Pods that opt in."""


class Wrong(NamedTuple):
    """A pod with one mistake, and a part of what is said of it."""

    pod: Manifest
    says: str


def _described(says: str, **edits: str) -> Wrong:
    return Wrong(pod(annotations=inline(**edits)), says)


WRONG: Final = {
    "an annotation nobody knows": Wrong(
        pod(annotations={TASK: "camera", "tierline.io/dead-line": "5ms"}), "does not exist"
    ),
    "an annotation of claims": Wrong(
        pod(annotations={TASK: "camera", "tierline.io/plan": "{}"}), "there are task, containers"
    ),
    "a description without a task": Wrong(
        pod(annotations={"tierline.io/period": "5ms"}), "need tierline.io/task"
    ),
    "containers without a task": Wrong(
        pod(annotations={"tierline.io/containers": "app"}), "need tierline.io/task"
    ),
    "a task with capitals": Wrong(pod(annotations={TASK: "Camera"}), "no name of a MemTask"),
    "a task with a point": Wrong(pod(annotations={TASK: "camera.front"}), "no name of a MemTask"),
    "a task without name": Wrong(pod(annotations={TASK: ""}), "no name of a MemTask"),
    "a task with a long name": Wrong(pod(annotations={TASK: "a" * 64}), "at most 63"),
    "a task in another namespace": Wrong(pod(annotations={TASK: "robot/camera"}), "no name"),
    "a description without period": _described("need tierline.io/period", period=""),
    "a description without budget": _described("tierline.io/budget and", budget=""),
    "a description without device": _described("tierline.io/device", device=""),
    "training that is none": _described("tierline.io/training is not valid", training="yes"),
    "training with a deadline": _described("BestEffort; write that", training="true"),
    "training on a gpu": _described(
        "a cpu device; write cpu", training="true", device="cuda", period=""
    ),
    "a period without unit": _described("tierline.io/period is not valid", period="50"),
    "a period of zero": _described("tierline.io/period is not valid", period="0s"),
    "a period of two days": _described("tierline.io/period is not valid", period="48h"),
    "a period longer than the world": _described(
        "tierline.io/period is not valid", period="99999999999999h", deadline="99999999h"
    ),
    "a period in words": _described("such as 50ms", period="often"),
    "a deadline without unit": _described("tierline.io/deadline is not valid", deadline="40"),
    "a deadline after the period": _described(
        "deadline is not valid; deadline must not be longer than period", deadline="51ms"
    ),
    "an execution time after the deadline": _described(
        "execution-time must not be longer than deadline", execution_time="41ms", deadline="40ms"
    ),
    "an execution time after the period": _described(
        "than period; no job could end in time: write a longer period", execution_time="51ms"
    ),
    "more reserved than the budget": _described(
        "reserved is not valid; reserved must not be more than budget", reserved="1Ti"
    ),
    "a criticality in small letters": _described("write Hard, Soft or", criticality="hard"),
    "a negative execution time": _described("execution-time is not valid", execution_time="-1ms"),
    "a budget in GB": _described("tierline.io/budget is not valid", budget="2GB"),
    "a budget of half a byte": _described("tierline.io/budget is not valid", budget="0.5"),
    "a reserve of half a byte": _described("tierline.io/reserved is not valid", reserved="0.5"),
    "a budget of nothing": _described("tierline.io/budget is not valid", budget="0"),
    "a budget in thousandths of a byte": _described("such as 512Mi", budget="512m"),
    "a negative reserve": _described("tierline.io/reserved is not valid", reserved="-1"),
    "a tier nobody knows": _described("commas: dram, pmem, nvme", tiers="dram,nvm"),
    "a tier twice": _described("tiers must not repeat a tier", tiers="dram, dram"),
    "no tier": _described("write tiers", tiers=","),
    "a policy in capitals": _described("write Auto, Resident, Stream or Swap", policy="STREAM"),
    "a spill that is a truth value": _described("write Fail or Spill", on_budget_exceeded="true"),
    "a device that is a gpu": _described("write cpu or cuda", device="gpu"),
    "a model that is a story": _described("such as H200", model="x" * 129),
    "a profile with capitals": _described("name of a MemProfile", profile="Camera"),
    "a profile with a point": _described("letters, digits and '-'", profile="camera.v2"),
    "a profile with a long name": _described("at most 63", profile="a" * 64),
    "a container nobody has": Wrong(pod(annotations=only("ap")), "names no container"),
    "no container at all": Wrong(pod(annotations=only("")), "names no container"),
    "one right container and a wrong one": Wrong(pod(annotations=only("app,x")), "or leave it out"),
    "LD_PRELOAD from elsewhere": Wrong(pod(container(env=[preload(None)])), "valueFrom"),
    "LD_PRELOAD from elsewhere at last": Wrong(
        pod(container(env=[preload("/a.so"), preload(None)])), "valueFrom"
    ),
    "LD_PRELOAD from elsewhere in an init container": Wrong(
        pod(initContainers=[container("fetch", env=[preload(None)])]), "valueFrom"
    ),
    "a volume where the library comes": Wrong(
        pod(
            container(volumeMounts=[{"name": "v", "mountPath": "/run/tierline"}]),
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        "mount it elsewhere",
    ),
    "a volume inside the library's folder": Wrong(
        pod(
            container(volumeMounts=[{"name": "v", "mountPath": "/run/tierline/x"}]),
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        "mount it elsewhere",
    ),
    "a claim of the same name": Wrong(
        pod(resourceClaims=[{"name": "tierline", "resourceClaimName": "mine"}]), "not that of the"
    ),
    "the claim of another task": Wrong(
        pod(resourceClaims=[{"name": "tierline", "resourceClaimTemplateName": "other"}]),
        "give it another name",
    ),
    "a node by name": Wrong(pod(nodeName="node-1"), "before its task is admitted"),
    "Windows": Wrong(pod({"name": "app", "image": "x"}, os={"name": "windows"}), "Linux nodes"),
    "a virtual machine": Wrong(pod(runtimeClassName="kata-qemu"), "kernel of their own"),
    "a GPU of its own": Wrong(
        pod(container(resources={"limits": {"nvidia.com/gpu": "1"}})), "takes a GPU of its own"
    ),
    "a part of a GPU of its own": Wrong(
        pod(container(resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}})), "remove it there"
    ),
    "a kernel in user space": Wrong(pod(runtimeClassName="gvisor"), "use runc, crun or nvidia"),
}
"""Pods that cannot work."""


def copied(manifest: Manifest, namespace: str) -> Manifest:
    """Return a copy of `manifest` in `namespace`."""
    result = deepcopy(manifest)
    result["metadata"]["namespace"] = namespace
    return result


def templated(kind: str, of: Manifest) -> Manifest:
    """Return a Deployment or CronJob that makes pods like `of`."""
    labels = {"app": "camera"}
    metadata = {**deepcopy(of["metadata"]), "labels": labels}
    del metadata["name"]
    template = {"metadata": metadata, "spec": deepcopy(of["spec"])}
    if kind == "CronJob":
        template["spec"]["restartPolicy"] = "Never"
        spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": template}}}
        api_version = "batch/v1"
    else:
        spec = {"selector": {"matchLabels": labels}, "template": template}
        api_version = "apps/v1"
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "camera"}, "spec": spec}
