"""Objects of the API server as the operator keeps them: small, typed, never trusted to be whole.

Tasks, nodes, profiles and quotas become the API's models; of claims and pods only what matters is
kept. Objects of the API server carry names that people chose; nothing here raises for what a user
can write, except `Unreadable` where an object is not what its CRD says (an older CRD is installed).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from tierline_api.manifests.mistakes import first_mistake
from tierline_api.objects.memtask_status import Observed
from tierline_api.objects.optin import (
    DRIVER,
    GATE,
    INLINE,
    ORDER,
    PLAN,
    POD_CLAIM,
    STANDING,
    TASK,
    TERMS,
    Standing,
)
from tierline_api.objects.plan import Plan
from tierline_api.objects.pod import mapping
from tierline_api.schema.base import ApiModel
from tierline_kube.resource import Json
from tierline_operator.cluster.resources import FIELD_MANAGER
from tierline_operator.placement.books.holding import held_of
from tierline_operator.placement.books.seats import Claim, ClaimKey, DeviceKey
from tierline_operator.placement.needs.fitting import ANYWHERE, Needs, Taint, Worker
from tierline_operator.placement.needs.pods import needs_of
from tierline_operator.planning.held import Held

_HOLDING = {Standing.PLANNED, Standing.DEMOTED}
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""An order as the operator writes it; int() refuses thousands of digits."""
_OWNER: Final = re.compile(r'k:\{"uid":"([^"\\]+)"\}')
"""An owner among the fields that a manager has."""
_USUAL: Final = {"PodInitializing"}
_CLOCKS: Final = timedelta(seconds=5)
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
    owners: frozenset[str]
    """The uids of all its owners."""
    created: str
    lent: frozenset[str] = frozenset()
    """The uids of owners that the operator gave it, as the API server has noted."""


@dataclass(frozen=True)
class KnownClaim:
    """A pod's claim."""

    meta: Meta
    claim: Claim
    observed: Observed | None
    """Measurements of the pod by the node's agent."""
    reserved: bool = False
    """Whether Kubernetes has noted for which pod it is."""

    def is_of(self, pod: KnownPod) -> bool:
        """Whether it was made for that pod, and not for one that had its name before."""
        return self.meta.owner is not None and self.meta.owner["uid"] == pod.meta.uid

    def places(self, pod: KnownPod) -> bool:
        """Whether it has its place where that pod runs, also if its owner was cut out of it."""
        place = self.claim.place
        its_own = self.is_of(pod) or (self.meta.owner is None and pod.claim == self.meta.name)
        return its_own and place is not None and place.node == pod.node

    def serves(self, pod: KnownPod) -> bool:
        """Whether that pod may have started by it: one that came later is nothing to its node."""
        return self.places(pod) and not _is_after(self.meta.created, pod.scheduled)


@dataclass(frozen=True)
class KnownPod:
    """A pod that opted in."""

    meta: Meta
    task: str
    gate: int | None
    """The index of the gate among its scheduling gates."""
    phase: str
    ready: bool
    node: str = ""
    """The node to which it is bound."""
    needs: Needs = ANYWHERE
    """Its needs of a node."""
    unscheduled: str = ""
    """The words of kube-scheduler, where it found no node for it."""
    unseen: str = ""
    """The likely fault, where it is free to be scheduled and no scheduler has spoken of it."""
    waits: str = ""
    """Why a container of it does not start, as the kubelet says in a word."""
    inline: dict[str, str] = field(default_factory=dict)
    """Its inline annotations."""
    opted_in: bool = True
    """Whether it has the annotation: a label alone is no more than a label."""
    asks: bool = True
    """Whether it asks for a claim of its task, as the admission policies see to."""
    claim: str = ""
    """The name of its claim, as Kubernetes has noted it in its status."""
    scheduled: str = ""
    """When it was bound, by the clock of the API server."""

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def outside(self) -> bool:
        """Whether it opted in while no admission policy was in force, and is to stay."""
        given = self.asks or self.gate is not None
        return self.opted_in and not (given or self.over or self.meta.leaving)


@dataclass(frozen=True)
class KnownPart:
    """A claim template or a Deployment that the operator made."""

    meta: Meta
    spec: Mapping[str, Any]
    generation: int
    """Counts changes of its spec, by any client."""
    failure: str = ""
    """Why a Deployment's pods cannot be made, in the words of the component that forbids it."""


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
        owners=frozenset(o["uid"] for o in owners),
        created=metadata.get("creationTimestamp") or "",
        lent=frozenset(_lent(metadata)),
    )


def _lent(metadata: Json) -> Iterator[str]:
    for one in metadata.get("managedFields") or ():
        if one.get("manager") == FIELD_MANAGER and not one.get("subresource"):
            fields = mapping(mapping(one.get("fieldsV1")).get("f:metadata"))
            for name in mapping(fields.get("f:ownerReferences")):
                if known := _OWNER.fullmatch(name):
                    yield known[1]


def model_of(model: type[M], body: Json) -> M:
    """An object of Tierline's own kinds; raises Unreadable."""
    # What Kubernetes notes about the object is long, and nobody here reads it.
    metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    try:
        return model.from_stored({**body, "metadata": metadata})
    except ValidationError as error:
        mistake = first_mistake(model, error)
        raise Unreadable(f"{mistake.field}: {mistake.problem}") from error


def worker_of(body: Json) -> Worker:
    """A Node of the cluster."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    ready = _condition(status, "Ready")
    taints = spec.get("taints") or ()
    return Worker(
        name=body["metadata"]["name"],
        ready=ready.get("status") == "True",
        unready=ready.get("message") or "",
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(Taint(t["key"], t.get("value") or "", t["effect"]) for t in taints),
        labels=body["metadata"].get("labels") or {},
    )


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
    pods = (one for one in status.get("reservedFor") or () if one.get("resource") == "pods")
    reserved = next(pods, None)
    return KnownClaim(
        meta=meta,
        claim=Claim(
            key=ClaimKey(meta.namespace, meta.name),
            task=meta.labels.get(TASK, ""),
            created=meta.created,
            pod=(meta.owner or reserved or {"name": ""})["name"],
            place=DeviceKey(ours["pool"], ours["device"]) if ours else None,
            allocated=allocation.get("allocationTimestamp") or "",
            order=int(order) if _NUMBER.fullmatch(order) else None,
            profiling=bool(ours)
            and (standing == Standing.PROFILING or (standing == Standing.LOST and not plan)),
            sharing=bool(ours) and standing == Standing.PROFILING and plan,
            overdue=bool(ours) and before is not None and before.claim.overdue,
            unmeasured=bool(ours) and standing == Standing.UNMEASURED,
            leaving=meta.leaving,
            held=_held(meta, before) if ours and standing in _HOLDING else None,
            terms=meta.annotations.get(TERMS, "") if ours else "",
            lost=bool(ours) and standing == Standing.LOST,
            overran_s=observed.overrun_job_time_s if ours and observed else None,
        ),
        observed=observed,
        reserved=bool(status.get("reservedFor")),
    )


def _held(meta: Meta, before: KnownClaim | None) -> Held | None:
    """The holding by the plan noted in a claim; a plan is long and seldom changes."""
    noted = meta.annotations.get(PLAN)
    if noted is None:
        return None
    if before is not None and before.claim.held and before.meta.annotations.get(PLAN) == noted:
        return before.claim.held
    try:
        return held_of(Plan.from_api(json.loads(noted)))
    except (ValueError, RecursionError):  # of another release, or nonsense: it is noted again
        return None


def _observed(devices: Any) -> Observed | None:
    """The agent's record; anything that is no Observed is as good as nothing."""
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
    status = body.get("status") or {}
    scheduled = _condition(status, "PodScheduled")
    waits = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    task = meta.annotations.get(TASK) or meta.labels.get(TASK, "")
    claims = status.get("resourceClaimStatuses") or ()
    asked = body["spec"].get("resourceClaims") or ()
    templates = {one.get("name"): one.get("resourceClaimTemplateName") for one in asked}
    return KnownPod(
        meta=meta,
        task=task,
        gate=gates.index(GATE) if GATE in gates else None,
        phase=status.get("phase") or "",
        ready=_condition(status, "Ready").get("status") == "True",
        node=body["spec"].get("nodeName") or "",
        needs=needs_of(body["spec"]),
        unseen="" if gates else _unseen(body["spec"], status, scheduled),
        waits=_waits(status),
        unscheduled=(scheduled.get("message") or "") if waits else "",
        inline={name: meta.annotations[name] for name in INLINE if name in meta.annotations},
        opted_in=TASK in meta.annotations,
        asks=templates.get(POD_CLAIM) == task,
        scheduled=scheduled.get("lastTransitionTime") or ""
        if scheduled.get("status") == "True"
        else "",
        claim=next((c.get("resourceClaimName", "") for c in claims if c["name"] == POD_CLAIM), ""),
    )


def _is_after(one: str, other: str) -> bool:
    """Whether a time is after another, by more than clocks of API servers differ."""
    try:
        return datetime.fromisoformat(one) - datetime.fromisoformat(other) > _CLOCKS
    except (ValueError, TypeError):  # one is not known
        return False


def _unseen(spec: Json, status: Json, scheduled: Json) -> str:
    """Places to look at where no scheduler has spoken of a pod since it left its gate."""
    spoken = bool(scheduled) and scheduled.get("reason") != "SchedulingGated"
    if spoken or spec.get("nodeName") or status.get("phase") != "Pending":
        return ""
    claims = [one for one in spec.get("resourceClaims") or () if one.get("name") != POD_CLAIM]
    named = [c.get("resourceClaimName") or c.get("resourceClaimTemplateName") for c in claims]
    also = f", and are its other claims ({', '.join(map(str, named))}) there" if named else ""
    scheduler = spec.get("schedulerName") or "default-scheduler"
    return f"no scheduler has spoken of it; is there one called {scheduler}{also}?"


def _waits(status: Json) -> str:
    """Why the first container that does not start waits; "" for what is usual."""
    all_ = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    reasons = (((one.get("state") or {}).get("waiting") or {}).get("reason") for one in all_)
    return next((str(why) for why in reasons if why and why not in _USUAL), "")


def _condition(status: Json, kind: str) -> Json:
    """The condition of that type; empty if there is none."""
    conditions: list[Json] = status.get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), {})


def part_of(body: Json) -> KnownPart:
    """A claim template or a Deployment."""
    failed = _condition(body.get("status") or {}, "ReplicaFailure")
    failure = failed.get("message") or "" if failed.get("status") == "True" else ""
    generation = body["metadata"].get("generation") or 0
    return KnownPart(meta_of(body), body.get("spec") or {}, generation, failure)
