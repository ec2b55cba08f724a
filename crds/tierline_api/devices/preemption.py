"""How a job gives its device away before it ends: what a device can do, and what a plan grants.

Without such terms a job keeps the device to its end; every device can do that.
"""

from enum import StrEnum

from tierline_api.schema.base import ApiModel
from tierline_api.schema.fields import Count, Seconds


class Scheduling(StrEnum):
    """Whether a job that is preempted where a layer ends keeps its ring."""

    LAYER_PREEMPTIVE = "LayerPreemptive"
    RING_KEEPING = "RingKeeping"


class Preemption(ApiModel):
    """How the jobs of a task give the device away in the middle."""

    scheduling: Scheduling
    """LayerPreemptive: a job that takes over takes the ring; RingKeeping: only if it streams."""
    layer_s: Seconds
    """How soon after it was asked a job stands at a gate, at worst."""
    penalty_s: Seconds
    """What one preemption makes a job do again, at worst."""
    parked_bytes: Count = 0
    """Fast memory for what a preempted job has computed so far, in bytes."""
