"""MemTasks and MemNodes as the plugin shows them: read leniently, as another release wrote them.

Pure. A field that is missing, or that this release cannot read, is None and shows as `-`: a user
who looks at a cluster with an older plugin still sees the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tierline_api.objects.conditions import ConditionType, Reason
from tierline_api.objects.memtask_status import Phase
from tierline_api.objects.optin import DRIVER, GATE, POD_CLAIM, TASK
from tierline_api.schema.quantities import QuantityError, parse_duration

Json = Mapping[str, Any]
_NO_CLAIM: Final = "FailedResourceClaimCreation"
_SECONDS: Final = len("2026-11-21T12:00:00")
UNSEEN: Final = "Unseen"
"""The reason shown of a task that no operator has looked at yet."""


@dataclass(frozen=True)
class ConditionView:
    """One condition of a task."""

    type: str
    status: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True)
class PlanView:
    """The plan and the bound that admission granted."""

    extent_bytes: int
    extents: int
    resident_extents: int
    ring_extents: int
    workspace_bytes: int


@dataclass(frozen=True)
class TaskView:
    """A MemTask. Times in seconds."""

    namespace: str
    name: str
    phase: str
    reason: str
    message: str
    """The sentence that goes with the reason."""
    criticality: str
    replicas: int
    placed: int | None
    node: str | None
    device: str | None
    period_s: float | None
    deadline_s: float | None
    bound_s: float | None
    job_s: float | None
    jobs: int | None
    misses: int | None
    response_p50_s: float | None
    response_p99_s: float | None
    response_worst_s: float | None
    fast_memory_bytes: int | None
    streamed_bytes_per_job: int | None
    tier_bytes: dict[str, int]
    plan: PlanView | None
    conditions: tuple[ConditionView, ...]
    owners: tuple[str, ...] = ()
    """Names of what brought it along, if it was not applied by itself."""

    @property
    def waits(self) -> bool:
        """Whether it is not, or not wholly, admitted as its spec is now."""
        admitted = self.condition(ConditionType.ADMITTED)
        if admitted is None or admitted.status != "True":
            return True
        return admitted.reason == Reason.CHANGE_REFUSED

    @property
    def stands(self) -> bool:
        """Whether it is admitted, and its pods do not all run as it asks for them."""
        ready = self.condition(ConditionType.READY)
        if self.waits or (ready is not None and ready.status == "True"):
            return False
        return ready is None or ready.reason != Reason.NO_REPLICAS

    def condition(self, kind: ConditionType) -> ConditionView | None:
        """The condition of a type, if anything was said of it."""
        return next((c for c in self.conditions if c.type == kind.value), None)


def task_view(found: Json) -> TaskView:
    """Read a MemTask as the API server has it."""
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    realtime, observed = spec.get("realtime") or {}, status.get("observed") or {}
    predicted = status.get("predicted") or {}
    conditions = tuple(
        ConditionView(
            type=str(c["type"]),
            status=str(c["status"]),
            reason=str(c.get("reason", "")),
            message=str(c.get("message", "")),
            since=str(c.get("lastTransitionTime", "")),
        )
        for c in status.get("conditions") or ()
    )
    reason = str(status.get("reason") or (UNSEEN if not status.get("conditions") else ""))
    return TaskView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        phase=str(status.get("phase") or Phase.PENDING),
        reason=reason,
        message=_message(conditions, reason),
        criticality=str(realtime.get("criticality") or "Hard"),
        replicas=_whole(spec.get("replicas"), 1) or 0,
        placed=_whole(status.get("placed")),
        node=status.get("node"),
        device=status.get("device"),
        period_s=_seconds(realtime.get("period")),
        deadline_s=_seconds(realtime.get("deadline") or realtime.get("period")),
        bound_s=_seconds(predicted.get("responseTime")),
        job_s=_seconds(predicted.get("jobTime")),
        jobs=_whole(observed.get("jobs")),
        misses=_whole(observed.get("misses")),
        response_p50_s=_seconds(observed.get("responseTimeP50")),
        response_p99_s=_seconds(observed.get("responseTimeP99")),
        response_worst_s=_seconds(observed.get("responseTimeWorst")),
        fast_memory_bytes=_whole(status.get("fastMemoryBytes")),
        streamed_bytes_per_job=_whole(observed.get("streamedBytesPerJob")),
        tier_bytes={t["tier"]: t["bytes"] for t in status.get("tiers") or ()},
        plan=_plan(status.get("plan")),
        conditions=conditions,
        owners=tuple(str(one.get("name")) for one in metadata.get("ownerReferences") or ()),
    )


@dataclass(frozen=True)
class DeviceView:
    """A device of a node."""

    name: str
    product: str
    fast_bytes: int
    used_bytes: int
    health: str


@dataclass(frozen=True)
class NodeView:
    """A MemNode."""

    name: str
    health: str
    agent_version: str
    devices: tuple[DeviceView, ...]
    tiers: dict[str, tuple[int, int]]
    """Used and capacity of each, in bytes."""
    links: dict[str, int]
    """Bandwidth that plans are made with of each link to each device, in bytes per second."""


def node_view(found: Json) -> NodeView:
    """Read a MemNode as the API server has it."""
    status = found.get("status") or {}
    return NodeView(
        name=found["metadata"]["name"],
        health=str(status.get("health") or "Unknown"),
        agent_version=str(status.get("agentVersion") or ""),
        devices=tuple(
            DeviceView(
                name=device["name"],
                product=device.get("product", ""),
                fast_bytes=device.get("fastBytes", 0),
                used_bytes=device.get("usedBytes", 0),
                health=device.get("health", ""),
            )
            for device in status.get("devices") or ()
        ),
        tiers={
            tier["name"]: (tier.get("usedBytes", 0), tier.get("capacityBytes", 0))
            for tier in status.get("tiers") or ()
        },
        links={
            f"{link['device']}/{link['name']}": link.get("bandwidth", 0)
            for link in status.get("links") or ()
        },
    )


@dataclass(frozen=True)
class PodView:
    """A pod that opted in."""

    name: str
    task: str
    phase: str
    gated: bool
    outside: bool = False
    """Whether it was made while no admission policy was in force: it has neither gate nor claim."""
    ready: bool = False
    waits: str = ""
    """The words of kube-scheduler or the kubelet on why it does not run."""
    since: str = ""
    """When something of its state changed last; texts that sort as they are."""
    claimed: bool = False
    """Whether the claims that its templates describe are there."""
    created: str = ""
    claims: tuple[str, ...] = ()
    """Names of the claims that it has not from templates."""
    unseen_by: str = ""
    """The scheduler that has not spoken of it, though it may; empty if one has."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.phase in {"Succeeded", "Failed"}


def pod_view(found: Json) -> PodView:
    """Read a pod as the API server has it."""
    metadata, spec = found["metadata"], found.get("spec") or {}
    task = (metadata.get("annotations") or {}).get(TASK) or (metadata.get("labels") or {}).get(TASK)
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    status = found.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    return PodView(
        name=metadata["name"],
        task=str(task or ""),
        phase=str(status.get("phase") or "Pending"),
        gated=GATE in gates,
        outside=_is_outside(metadata, spec, status, gates),
        ready=conditions.get("Ready", {}).get("status") == "True",
        waits=_pod_waits(status, conditions),
        since=max(
            (str(c.get("lastTransitionTime") or "") for c in conditions.values()), default=""
        ),
        created=str(metadata.get("creationTimestamp") or ""),
        claims=tuple(
            str(one["resourceClaimName"])
            for one in spec.get("resourceClaims") or ()
            if one.get("resourceClaimName")
        ),
        unseen_by=_unseen_by(spec, gates, conditions),
        claimed=len(status.get("resourceClaimStatuses") or ())
        >= sum("resourceClaimTemplateName" in one for one in spec.get("resourceClaims") or ()),
    )


def _is_outside(metadata: Json, spec: Json, status: Json, gates: list[str]) -> bool:
    task = (metadata.get("annotations") or {}).get(TASK)
    asked = spec.get("resourceClaims") or ()
    templates = {one.get("name"): one.get("resourceClaimTemplateName") for one in asked}
    given = GATE in gates or templates.get(POD_CLAIM) == task
    over = "deletionTimestamp" in metadata or status.get("phase") in {"Succeeded", "Failed"}
    return task is not None and not given and not over


def _unseen_by(spec: Json, gates: list[str], conditions: Mapping[str, Json]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    # What was said at a gate stays until somebody looks at the pod again.
    spoken = bool(scheduled) and scheduled.get("reason") != "SchedulingGated"
    if gates or spoken or spec.get("nodeName"):
        return ""
    return str(spec.get("schedulerName") or "default-scheduler")


def _pod_waits(status: Json, conditions: Mapping[str, Json]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("reason") == "Unschedulable":
        return f"kube-scheduler: {scheduled.get('message', '')}"
    all_ = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waiting = ((one.get("state") or {}).get("waiting") or {} for one in all_)
    return next(
        (
            ": ".join(filter(None, (w["reason"], w.get("message"))))
            for w in waiting
            if w.get("reason") not in {None, "ContainerCreating", "PodInitializing"}
        ),
        "",
    )


@dataclass(frozen=True)
class EventView:
    """A warning about an object."""

    namespace: str
    kind: str
    name: str
    reason: str
    message: str
    at: str
    """When it was given last; texts that sort as they are."""
    ours: bool
    """Whether Tierline gave it."""

    def holds_of(self, pod: PodView) -> bool:
        """Whether what it says of a pod still is so: what changed since then, may be mended."""
        if self.reason == _NO_CLAIM and pod.claimed:
            return False
        return self.is_after(pod.since)

    def is_after(self, since: str) -> bool:
        """Whether it was not given before that time, in whole seconds, as conditions have them."""
        return self.at[:_SECONDS] >= since[:_SECONDS]

    def is_of(self, owner: str) -> bool:
        """Whether it is about an object, or a ReplicaSet that it made."""
        return self.name == owner or (
            self.kind == "ReplicaSet" and self.name.rpartition("-")[0] == owner
        )


def event_view(found: Json) -> EventView:
    """Read an event as the API server has it."""
    about = found.get("involvedObject") or {}
    series = found.get("series") or {}
    times = (series.get("lastObservedTime"), found.get("lastTimestamp"), found.get("eventTime"))
    return EventView(
        namespace=str(about.get("namespace") or ""),
        kind=str(about.get("kind") or ""),
        name=str(about.get("name") or ""),
        reason=str(found.get("reason") or ""),
        message=str(found.get("message") or ""),
        ours=str(found.get("reportingComponent") or "").startswith(f"{DRIVER}/"),
        at=next((str(at) for at in times if at), ""),
    )


def _message(conditions: tuple[ConditionView, ...], reason: str) -> str:
    return next((c.message for c in conditions if c.reason == reason), "")


def _plan(plan: Json | None) -> PlanView | None:
    if not plan:
        return None
    return PlanView(
        extent_bytes=plan.get("extentBytes", 0),
        extents=plan.get("extentCount", 0),
        resident_extents=len(plan.get("residentExtents") or ()),
        ring_extents=plan.get("ringExtents", 0),
        workspace_bytes=plan.get("workspaceBytes", 0),
    )


def _seconds(text: object) -> float | None:
    try:
        return parse_duration(str(text)) if text else None
    except QuantityError:
        return None


def _whole(value: object, default: int | None = None) -> int | None:
    return value if isinstance(value, int) else default
