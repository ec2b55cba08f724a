"""The status of a MemTask: what was decided, what was predicted, and what was observed."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, Field

from tierline_api.objects.conditions import Conditions
from tierline_api.objects.plan import Plan, Tier
from tierline_api.objects.realtime import Realtime
from tierline_api.objects.swap import Memory, Swap
from tierline_api.schema.base import ApiModel
from tierline_api.schema.fields import Count, Seconds, Text

MAX_REMEASURED: Final = 1000
"""Nodes on which over-runs of one task count: as many as it has pods at most."""


class Phase(StrEnum):
    """One word for `kubectl get`; conditions hold the truth."""

    PENDING = "Pending"
    PROFILING = "Profiling"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    REFUSED = "Refused"


class Predicted(ApiModel):
    """What the proof promises."""

    job_time_s: Seconds
    """The worst time of one job that runs alone, streaming included."""
    response_time_s: Seconds | None = None
    """The worst time from release to end among all admitted tasks; absent for BestEffort."""


class Observed(ApiModel):
    """What has been measured since the task was admitted."""

    jobs: Count = 0
    """Jobs that have ended."""
    steps: Count = 0
    """Steps that a task with `training` has made; their times stand for those of jobs."""
    misses: Count = 0
    """Jobs that ended after their deadline."""
    response_time_p50_s: Seconds | None = None
    """Half of the jobs ended within this time of their release."""
    response_time_p99_s: Seconds | None = None
    """99 of 100 jobs ended within this time of their release."""
    response_time_worst_s: Seconds | None = None
    """All jobs ended within this time of their release."""
    overruns: Count = 0
    """Jobs that had the device for longer than their plan predicts."""
    overrun_job_time_s: Seconds | None = None
    """Of the last jobs, at least two over-ran, and had the device for this time or longer."""
    streamed_bytes_per_job: Count = 0
    """Bytes streamed into fast memory in a job, on average."""
    last_updated: AwareDatetime | None = None
    """When this was measured."""


class TierBytes(ApiModel):
    """Bytes of the task in one tier."""

    tier: Tier
    """The tier."""
    bytes: Count
    """Bytes of the task that it holds."""


class Granted(ApiModel):
    """What was admitted: it goes on to hold when a later change of the spec is refused."""

    generation: Count
    """The generation of the spec that was admitted."""
    realtime: Realtime
    """When jobs are released and when they must end."""
    memory: Memory
    """How much memory the task may use."""
    swap: Swap
    """Where bytes go that are not in fast memory."""


class Remeasured(ApiModel):
    """What over-runs on a node showed: its jobs there compute for longer than measured before."""

    node: Text
    """The node; what its agent says counts on no other."""
    profile: Text
    """The MemProfile that this corrects: its uid and generation. A new one starts without."""
    compute_time_s: Seconds
    """How long a job computes there at worst, all weights resident; counts where the profile, or
    the execution time that the spec states, says less."""


class Shown(ApiModel):
    """Figures of the status as people read them: whole Mi, and ms, rounded up."""

    fast_memory: Text | None = None
    """Fast memory that the plan takes."""
    streamed: Text | None = None
    """What is streamed in a job, on average."""
    predicted: Text | None = None
    """The worst response time that was proved."""
    worst: Text | None = None
    """The worst response time that was measured."""
    step: Text | None = None
    """What half of the steps took at most, from begin to end."""


class MemTaskStatus(ApiModel):
    """What has become of the task."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""
    phase: Phase = Phase.PENDING
    """A summary of the conditions in one word."""
    reason: Annotated[str, Field(max_length=64)] | None = None
    """Why it is in this phase: the reason of the condition that decides."""
    conditions: Conditions = ()
    """Profiled, Admitted, Ready, DeadlinesMet."""
    node: Text | None = None
    """The node that it was placed on; with several pods, that of the first."""
    device: Text | None = None
    """The device of that node."""
    placed: Count | None = None
    """How many pods have a place, places kept free for missing pods included."""
    replicas: Count | None = None
    """How many pods of it are there; for autoscalers."""
    selector: Annotated[str, Field(max_length=128)] | None = None
    """By which labels they are found; for autoscalers."""
    plan: Plan | None = None
    """What admission granted the first pod; each pod's own plan is an annotation of its claim."""
    granted: Granted | None = None
    """What was admitted of the spec."""
    fast_memory_bytes: Count | None = None
    """Fast memory that the plan takes: resident extents, ring and workspace, in bytes."""
    shown: Shown | None = None
    """For people."""
    predicted: Predicted | None = None
    """What the proof promises."""
    observed: Observed | None = None
    """What has been measured."""
    remeasured: Annotated[
        tuple[Remeasured, ...],
        Field(
            max_length=MAX_REMEASURED,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["node"],
            },
        ),
    ] = ()
    """By what times pods on these nodes are planned since their jobs over-ran."""
    tiers: Annotated[tuple[TierBytes, ...], Field(max_length=3)] = ()
    """Bytes per tier."""
