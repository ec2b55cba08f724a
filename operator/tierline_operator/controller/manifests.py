"""Manifests and patches that the operator writes for a task and its pods: pure builders."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.optin import (
    DRIVER,
    FAST_MEMORY,
    MADE_BY,
    MANAGER,
    NODE_LABEL,
    ORDER,
    PLAN,
    REQUEST,
    STANDING,
    TASK,
    TERMS,
    Standing,
)
from tierline_api.objects.terms import Terms
from tierline_api.schema.base import API_VERSION
from tierline_api.schema.metadata import label_value
from tierline_kube.resource import Json
from tierline_operator.cluster.decode import KnownClaim, KnownPod, Meta
from tierline_operator.cluster.resources import DEPLOYMENT, TEMPLATE
from tierline_operator.placement.books.seats import Seat
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.from_api import plan_of

PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own finalizer of allocated claims; its controller removes it."""
MANAGED_BY: Final = {MADE_BY: MANAGER}


def owned_by(task: Meta) -> list[Json]:
    """References by which an object goes with the MemTask that it was made for."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "MemTask",
            "name": task.name,
            "uid": task.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def claim_template(meta: Meta) -> Json:
    """The template from which each pod of a task gets its claim; it has the task's name."""
    labels = {TASK: meta.name}
    device = {"name": REQUEST, "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": TEMPLATE.group_version,
        "kind": TEMPLATE.kind,
        "metadata": {
            "namespace": meta.namespace,
            "name": meta.name,
            "labels": labels | MANAGED_BY,
            "ownerReferences": owned_by(meta),
        },
        "spec": {"metadata": {"labels": labels}, "spec": {"devices": {"requests": [device]}}},
    }


def deployment(task: MemTask, meta: Meta) -> Json:
    """The Deployment of a task with a template; its pods opt in as any other pod does."""
    if task.spec.template is None:
        raise ValueError(f"MemTask {task.name} has no template: it has no Deployment")
    template: dict[str, Any] = task.spec.template.to_api()
    metadata = dict(template.get("metadata") or {})
    labels = {TASK: meta.name}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), TASK: meta.name}
    return {
        "apiVersion": DEPLOYMENT.group_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {
            "namespace": meta.namespace,
            "name": meta.name,
            "labels": labels | MANAGED_BY,
            "ownerReferences": owned_by(meta),
        },
        "spec": {
            "replicas": task.spec.replicas,
            "selector": {"matchLabels": labels},
            # A pod more than admitted would wait for room that only its predecessor gives free.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "template": {**template, "metadata": metadata},
        },
    }


def says(there: Any, wanted: Any) -> bool:
    """Whether an object says all that is wanted, and perhaps more: defaults, others' fields.

    It is False also where the API server writes a value in another way, as 1 for 1000m.
    """
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            says(there.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(there, list | tuple)
            and len(there) == len(wanted)
            and all(map(says, there, wanted))
        )
    return bool(there == wanted) or (there is None and not wanted)


def claim_notes(seat: Seat, spec: MemTaskSpec) -> dict[str, str]:
    """The annotations by which the node's agent knows what a claim was granted by its spec."""
    measured = seat.standing is Standing.MEASURED  # as if it went on, until it has a plan
    notes = {
        STANDING: (Standing.PROFILING if measured else seat.standing).value,
        ORDER: str(seat.order),
        TERMS: json.dumps(Terms.of(spec).to_api(), separators=(",", ":")),
    }
    if seat.plan is not None:
        plan = plan_of(seat.plan, seat.scheduling)
        notes[PLAN] = json.dumps(plan.to_api(), separators=(",", ":"))
    return notes


def notes_patch(known: KnownClaim, seat: Seat, spec: MemTaskSpec) -> Json | None:
    """The change of a claim's metadata, if any is due; fenced by its resourceVersion."""
    notes: dict[str, str | None] = {**claim_notes(seat, spec)}
    labels = {TASK: known.claim.task, NODE_LABEL: label_value(seat.place.node)}
    finalizers = known.meta.finalizers | {PROTECTION}
    if seat.standing == Standing.LOST:
        del notes[ORDER]  # what it was granted last stays readable
    if seat.measured and seat.plan is None:
        notes[PLAN] = None  # a plan for its limit gave it nothing
    same = all(known.meta.annotations.get(name) == text for name, text in notes.items())
    if same and labels.items() <= known.meta.labels.items() and finalizers == known.meta.finalizers:
        return None
    return {
        "metadata": {
            "resourceVersion": known.meta.version,
            "uid": known.meta.uid,
            "annotations": notes,
            "labels": labels,
            "finalizers": sorted(finalizers),
        }
    }


def notes_withdrawal(known: KnownClaim) -> Json:
    """A patch that takes all notes out of an unallocated claim; fenced by its resourceVersion.

    Only a claim with notes is allocated: this changes every claim of which an allocation may be
    under way, so that it is refused.
    """
    return {
        "metadata": {
            "resourceVersion": known.meta.version,
            "uid": known.meta.uid,
            "annotations": dict.fromkeys((STANDING, ORDER, TERMS, PLAN)),
            "labels": {NODE_LABEL: None},
        }
    }


def allocation_patch(known: KnownClaim, seat: Seat, now: str) -> Json:
    """The allocation of a claim; fenced by its resourceVersion.

    Without `allocationTimestamp` kube-scheduler would try to add it, and fail for ever.
    """
    result: Json = {
        "request": REQUEST,
        "driver": DRIVER,
        "pool": seat.place.node,
        "device": seat.place.device,
        "shareID": str(uuid.uuid5(uuid.UUID(known.meta.uid), "tierline.io/share")),
    }
    if seat.plan is not None and not seat.measured:
        result["consumedCapacity"] = {FAST_MEMORY: str(fast_bytes(seat.plan))}
    only = {"key": "metadata.name", "operator": "In", "values": [seat.place.node]}
    return {
        "metadata": {"resourceVersion": known.meta.version, "uid": known.meta.uid},
        "status": {
            "allocation": {
                "allocationTimestamp": now,
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]},
                "devices": {"results": [result]},
            }
        },
    }


def deallocation(known: KnownClaim) -> Json:
    """The end of a claim's allocation; fenced by its resourceVersion."""
    return {
        "metadata": {"resourceVersion": known.meta.version, "uid": known.meta.uid},
        "status": {"allocation": None},
    }


def gate_removal(pod: KnownPod) -> list[Json]:
    """The JSON patch that lets the scheduler have a pod; fails if anything is not as it was."""
    at = f"/spec/schedulingGates/{pod.gate}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.meta.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.meta.version},
        {"op": "remove", "path": at},
    ]


def fast_bytes(plan: TaskPlan) -> int:
    """Fast memory that a plan takes: residents, ring, workspace, what preempted jobs keep."""
    extents = len(plan.resident_extents) + plan.ring_extents
    return extents * plan.extent_bytes + plan.workspace_bytes + plan.parked_bytes
