"""What users write wrong: the mistakes of all levels, and those that only a cluster can see.

CASES has those of tests/unit/api and its folder pods that the API server refuses, and more. Wrong
statuses are not here: no user writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.unit.api.api_objects import CLUSTER, profile, task
from tests.unit.api.api_objects import WRONG as WRONG_OBJECTS
from tests.unit.api.editing import REMOVED, edited
from tests.unit.api.pods.pod_cases import TASK, Manifest, container, inline, pod, preload, templated
from tests.unit.api.pods.pod_cases import WRONG as WRONG_PODS


class Case(NamedTuple):
    """One mistake."""

    section: str
    mistake: str
    manifest: Manifest
    right: tuple[Manifest, ...]
    """Manifests without mistake, to show what is wrong by the least difference to one of them."""
    before: Manifest | None = None
    """What is there already when the manifest is applied."""


def quota(**edits: Any) -> Manifest:
    """Return a good MemQuota with fields edited."""
    good = {
        "apiVersion": "tierline.io/v1alpha1",
        "kind": "MemQuota",
        "metadata": {"name": "all"},
        "spec": {"fastMemory": "8Gi", "tiers": [{"tier": "dram", "capacity": "64Gi"}]},
    }
    return edited(good, edits)


def workload(kind: str, of: Manifest) -> Manifest:
    """Return a workload of any kind that makes pods like `of`."""
    if kind in {"Deployment", "CronJob"}:
        return templated(kind, of)
    made = templated("Deployment", of)
    made |= {"kind": kind}
    if kind == "StatefulSet":
        made["spec"]["serviceName"] = "camera"
    if kind == "Job":
        made |= {"apiVersion": "batch/v1"}
        del made["spec"]["selector"]
        made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    if kind == "ReplicationController":
        made |= {"apiVersion": "v1"}
        made["spec"]["selector"] = made["spec"]["selector"]["matchLabels"]
    return made


_RIGHT: Final = {"MemTask": task(), "MemProfile": profile(), "MemQuota": quota()}
_MORE: Final = {
    "MemTask": {
        "an execution time longer than the period, without a deadline": task(
            spec__realtime={"period": "1s", "executionTime": "2s"}
        ),
        "a reserve in GB": task(spec__memory__reserved="1GB"),
        "a label that is no label": task(metadata__labels={"a b": "c"}),
    },
    "MemProfile": {
        "a workspace in MB": profile(spec__workspace="12MB"),
        "a name with a point": profile(metadata__name="camera.front"),
        "no device": profile(spec__device=REMOVED),
        "a layer without size": profile(spec__layers__0__bytes=REMOVED),
        "a misspelt field of a layer": profile(spec__layers__0__compute="1ms"),
    },
    "MemQuota": {
        "fast memory in GB": quota(spec__fastMemory="8GB"),
        "negative fast memory": quota(spec__fastMemory=-1),
        "a tier twice": quota(spec__tiers=[{"tier": "dram", "capacity": "1Gi"}] * 2),
        "a tier nobody knows": quota(spec__tiers__0__tier="ram"),
        "a tier without capacity": quota(spec__tiers=[{"tier": "dram"}]),
        "more of the links than there is": quota(spec__linkPercent=101),
        "a share in words": quota(spec__linkPercent="half"),
        "a misspelt field": quota(spec__linkPercentage=50),
        "a name with a point": quota(metadata__name="for.all"),
        "no spec": quota(spec=REMOVED),
    },
}
"""Mistakes that only a server is asked about."""
_RIGHT_PODS: Final = (
    pod(),
    pod(annotations=inline()),
    pod(annotations={}),
    pod(container(volumeMounts=[{"name": "v", "mountPath": "/data"}]), volumes=[]),
)


def _of_objects() -> Iterator[Case]:
    for kind, right in _RIGHT.items():
        for wrong in WRONG_OBJECTS:
            of_users = wrong.refused_by == CLUSTER and "status" not in wrong.object
            if of_users and wrong.object["kind"] == kind:
                yield Case(kind, wrong.id, wrong.object, (right,))
        for mistake, manifest in _MORE[kind].items():
            yield Case(kind, mistake, manifest, (right,))


def _of_pods() -> Iterator[Case]:
    for mistake, wrong in WRONG_PODS.items():
        yield Case("Pod", mistake, wrong.pod, _RIGHT_PODS)
    there = edited(pod(annotations={}), {"metadata__name": "started"})
    late = edited(there, {"metadata__annotations": {TASK: "camera"}})
    yield Case("Pod", "opting in after the pod was made", late, (there,), before=there)
    seen = edited(pod(), {"metadata__name": "seen"})
    unseen = edited(seen, {"metadata__labels": {TASK: "other"}})
    yield Case(
        "Pod", "another label of a task at a pod that is there", unseen, (seen,), before=seen
    )


def _of_workloads() -> Iterator[Case]:
    later = pod(annotations=inline(deadline="51ms"))
    elsewhere = pod(container(env=[preload(None)]))
    for kind, mistake, wrong in (
        ("Deployment", "a deadline after the period", later),
        ("Deployment", "LD_PRELOAD from elsewhere", elsewhere),
        ("StatefulSet", "a container nobody has", WRONG_PODS["a container nobody has"].pod),
        ("DaemonSet", "a node by name", WRONG_PODS["a node by name"].pod),
        ("ReplicaSet", "a task with capitals", WRONG_PODS["a task with capitals"].pod),
        ("ReplicationController", "a budget in GB", WRONG_PODS["a budget in GB"].pod),
        ("Job", "a description without period", WRONG_PODS["a description without period"].pod),
        ("CronJob", "a deadline after the period", later),
        ("CronJob", "an annotation nobody knows", WRONG_PODS["an annotation nobody knows"].pod),
    ):
        right = tuple(workload(kind, good) for good in _RIGHT_PODS)
        yield Case("Workloads", f"{kind}: {mistake}", workload(kind, wrong), right)


CASES: Final = (*_of_objects(), *_of_pods(), *_of_workloads())
