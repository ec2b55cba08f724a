"""Conditions: what is true of an object, since when, why, and for which generation of its spec.

Reasons are for scripts and never change their spelling; messages are for people and name the fix.
`updated` is the only way by which conditions change: it keeps the time of the last transition.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints

from tierline_api.schema.base import ApiModel
from tierline_api.schema.fields import Count


class ConditionType(StrEnum):
    """What a condition is about."""

    PROFILED = "Profiled"
    ADMITTED = "Admitted"
    READY = "Ready"
    DEADLINES_MET = "DeadlinesMet"
    HEALTHY = "Healthy"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition is as it is: stable words for scripts."""

    # Profiled
    PROFILE_FOUND = "ProfileFound"
    PROFILE_MISSING = "ProfileMissing"
    PROFILING = "Profiling"
    PROFILING_FAILED = "ProfilingFailed"
    # Admitted
    ADMITTED = "Admitted"
    PENDING = "Pending"
    DEADLINE_INFEASIBLE = "DeadlineInfeasible"
    MEMORY_INSUFFICIENT = "MemoryInsufficient"
    TIER_INSUFFICIENT = "TierInsufficient"
    RING_TOO_SMALL = "RingTooSmall"
    NO_MATCHING_DEVICE = "NoMatchingDevice"
    NOT_SCHEDULABLE = "NotSchedulable"
    NO_LONGER_HOLDS = "NoLongerHolds"
    CHANGE_REFUSED = "ChangeRefused"
    NO_PODS = "NoPods"
    NO_CLAIM = "NoClaim"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NODE_GONE = "NodeGone"
    BEING_DELETED = "BeingDeleted"
    INVALID_SPEC = "InvalidSpec"
    # Ready
    RUNNING = "Running"
    STARTING = "Starting"
    NOT_RUNNING = "NotRunning"
    NO_REPLICAS = "NoReplicas"
    REPLICA_FAILURE = "ReplicaFailure"
    STALLED = "Stalled"
    # Ready, of a MemNode
    REGISTERED = "Registered"
    KUBELET_NOT_REGISTERED = "KubeletNotRegistered"
    AGENT_SILENT = "AgentSilent"
    AGENT_CRASHING = "AgentCrashing"
    # DeadlinesMet
    NO_MISSES = "NoMisses"
    DEADLINES_MISSED = "DeadlinesMissed"
    NO_JOBS = "NoJobs"
    OVERRUNS_NOT_HELD = "OverrunsNotHeld"
    # Healthy
    ALL_WELL = "AllWell"
    NOT_AS_CONFIGURED = "NotAsConfigured"
    LINK_DEGRADED = "LinkDegraded"
    TIER_FAILED = "TierFailed"
    DEVICE_FAILED = "DeviceFailed"
    AGENT_STARTING = "AgentStarting"


class Condition(ApiModel):
    """One statement about the object, as Kubernetes conditions are written."""

    type: ConditionType
    """What this condition is about."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
        ),
    ]
    """A word for scripts that says why."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """A sentence for people that says why and what to do."""
    last_transition_time: AwareDatetime
    """When status last changed."""
    observed_generation: Count | None = None
    """The generation of the spec that this was said about."""


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]
"""One of each type."""


def updated(
    conditions: Sequence[Condition],
    kind: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: str,
    *,
    now: datetime,
    observed_generation: int | None = None,
) -> list[Condition]:
    """Return `conditions` with the one of type `kind` set, its transition time kept if it stays."""
    before = find(conditions, kind)
    since = before.last_transition_time if before and before.status == status else now
    condition = Condition(
        type=kind,
        status=status,
        reason=reason.value,
        message=message[:4096],
        last_transition_time=since,
        observed_generation=observed_generation,
    )
    if before is None:
        return [*conditions, condition]
    return [condition if other.type == kind else other for other in conditions]


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of type `kind`, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)
