"""What the API server sends, as the operator keeps it: small, typed, and never trusted to be whole.

Tasks, nodes, profiles and quotas become the API's models; of claims and pods only what matters is
kept. Objects of the API server carry names that people chose; nothing here raises for what a user
can write, except `Unreadable` where an object is not what its CRD says (an older CRD is installed).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from tierline_api.base import ApiModel
from tierline_api.memtask_status import Observed
from tierline_api.mistakes import first_mistake
from tierline_api.optin import DRIVER, GATE, INLINE, ORDER, PLAN, STANDING, TASK
from tierline_api.plan import Plan
from tierline_kube.resource import Json
from tierline_operator.placement.holding import held_of
from tierline_operator.placement.seats import Claim, ClaimKey, DeviceKey, Standing
from tierline_operator.planning.held import Held

_HOLDING = {Standing.PLANNED, Standing.DEMOTED}
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""An order as the operator writes it; int() refuses thousands of digits."""
M = TypeVar("M", bound=ApiModel)


class Unreadable(ValueError):  # noqa: N818 - what it is
    """An object does not fit its model; the sentence says where."""


@dataclass(frozen=True)
class Meta:
    """Of every object."""

    namespace: str
    name: str
    uid: str
    version: str
    """Its resourceVersion; as a number it grows with every change of anything."""
    leaving: bool
    finalizers: frozenset[str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owner: Mapping[str, Any] | None
    """The reference to its controller."""
    created: str


@dataclass(frozen=True)
class KnownClaim:
    """A pod's claim."""

    meta: Meta
    claim: Claim
    observed: Observed | None
    """What the node's agent measured of the pod."""

    def is_of(self, pod: KnownPod) -> bool:
        """Whether it was made for that pod, and not for one that had its name before."""
        return self.meta.owner is not None and self.meta.owner["uid"] == pod.meta.uid


@dataclass(frozen=True)
class KnownPod:
    """A pod that opted in."""

    meta: Meta
    task: str
    gate: int | None
    """The index of the gate among its scheduling gates."""
    phase: str
    ready: bool
    inline: dict[str, str] = field(default_factory=dict)
    """Its inline annotations."""


@dataclass(frozen=True)
class KnownPart:
    """A claim template or a Deployment that the operator made."""

    meta: Meta
    spec: Mapping[str, Any]


def meta_of(body: Json) -> Meta:
    """The metadata of an object."""
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return Meta(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        leaving="deletionTimestamp" in metadata,
        finalizers=frozenset(metadata.get("finalizers") or ()),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owner=next((o for o in owners if o.get("controller")), None),
        created=metadata.get("creationTimestamp") or "",
    )


def model_of(model: type[M], body: Json) -> M:
    """An object of Tierline's own kinds; raises Unreadable."""
    # What Kubernetes notes about the object is long, and nobody here reads it.
    metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    try:
        return model.from_api({**body, "metadata": metadata})
    except ValidationError as error:
        mistake = first_mistake(model, error)
        raise Unreadable(f"{mistake.field}: {mistake.problem}") from error


def claim_of(body: Json, before: KnownClaim | None = None) -> KnownClaim:
    """A claim with the label of a task; `before` is what was known of it."""
    meta = meta_of(body)
    status = body.get("status") or {}
    allocation = status.get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    ours = next((r for r in results if r.get("driver") == DRIVER), None)
    order = meta.annotations.get(ORDER, "")
    standing, plan = meta.annotations.get(STANDING), PLAN in meta.annotations
    observed = _observed(status.get("devices") or ())
    return KnownClaim(
        meta=meta,
        claim=Claim(
            key=ClaimKey(meta.namespace, meta.name),
            task=meta.labels.get(TASK, ""),
            created=meta.created,
            pod=meta.owner["name"] if meta.owner else "",
            place=DeviceKey(ours["pool"], ours["device"]) if ours else None,
            allocated=allocation.get("allocationTimestamp") or "",
            order=int(order) if _NUMBER.fullmatch(order) else None,
            profiling=bool(ours)
            and (standing == Standing.PROFILING or (standing == Standing.LOST and not plan)),
            beside=bool(ours) and standing == Standing.PROFILING and plan,
            overdue=bool(ours) and before is not None and before.claim.overdue,
            unmeasured=bool(ours) and standing == Standing.UNMEASURED,
            leaving=meta.leaving,
            held=_held(meta, before) if ours and standing in _HOLDING else None,
            lost=bool(ours) and standing == Standing.LOST,
            overran_s=observed.overrun_job_time_s if ours and observed else None,
        ),
        observed=observed,
    )


def _held(meta: Meta, before: KnownClaim | None) -> Held | None:
    """What is held by the plan noted in a claim; a plan is long and seldom changes."""
    noted = meta.annotations.get(PLAN)
    if noted is None:
        return None
    if before is not None and before.claim.held and before.meta.annotations.get(PLAN) == noted:
        return before.claim.held
    try:
        return held_of(Plan.from_api(json.loads(noted)))
    except (ValueError, RecursionError):  # of another release, or nonsense: it is noted anew
        return None


def _observed(devices: Any) -> Observed | None:
    """What the agent wrote; anything that is no Observed is as good as nothing."""
    for device in devices:
        data = device.get("data") if device.get("driver") == DRIVER else None
        if isinstance(data, Mapping) and "observed" in data:
            try:
                return Observed.from_api(data["observed"])
            except ValidationError:
                return None
    return None


def pod_of(body: Json) -> KnownPod:
    """A pod with the label of a task."""
    meta = meta_of(body)
    gates = [gate.get("name") for gate in body["spec"].get("schedulingGates") or ()]
    conditions = (body.get("status") or {}).get("conditions") or ()
    return KnownPod(
        meta=meta,
        task=meta.annotations.get(TASK) or meta.labels.get(TASK, ""),
        gate=gates.index(GATE) if GATE in gates else None,
        phase=(body.get("status") or {}).get("phase") or "",
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        inline={name: meta.annotations[name] for name in INLINE if name in meta.annotations},
    )


def part_of(body: Json) -> KnownPart:
    """A claim template or a Deployment."""
    return KnownPart(meta_of(body), body.get("spec") or {})
