"""The plan: what admission grants a task, and how it lies in extents.

Written by admission into MemTask.status and into the agent's registration; read by the agent. It
counts in extents over all arenas of the task, concatenated in arena order. A plan that is
inconsistent in itself (an index beyond the extents, homes that do not add up) is never built.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from tierline_api.devices.preemption import Preemption
from tierline_api.schema.base import ApiModel, Rule
from tierline_api.schema.fields import Count, Index, PositiveCount, Seconds

MAX_EXTENTS: Final = 32_768
"""Most extents of one task: 1 TiB of weights at 32 MiB. A claim has its plan in an annotation, and
Kubernetes takes 256 KiB of them: six bytes for each resident extent, and the homes."""


class Tier(StrEnum):
    """Where bytes live that are not in fast memory."""

    DRAM = "dram"
    PMEM = "pmem"
    NVME = "nvme"


class Home(ApiModel):
    """The home tier of a run of extents."""

    tier: Tier
    """The tier that holds the copy from which these extents are read."""
    extents: Annotated[PositiveCount, Field(le=MAX_EXTENTS)]
    """How many extents in a row."""


class Plan(ApiModel):
    """What admission grants a task: resident extents, a ring, workspace, homes, and its proof."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.homes.map(h, h.extents).sum() == self.extentCount",
            "homes must name one tier for each of the extentCount extents",
            ".homes",
        ),
        Rule(
            "self.ringExtents <= self.extentCount",
            "ringExtents must not exceed extentCount",
            ".ringExtents",
        ),
        Rule(
            "self.ringExtents >= 1 || self.residentExtents.size() == self.extentCount",
            "ringExtents must be at least 1 when an extent is not resident",
            ".ringExtents",
        ),
        Rule(
            "self.residentExtents.all(e, e < self.extentCount)",
            "residentExtents must be below extentCount",
            ".residentExtents",
        ),
    )

    extent_bytes: PositiveCount
    """Size of an extent in bytes."""
    extent_count: Annotated[Count, Field(le=MAX_EXTENTS)]
    """Extents of all arenas of the task."""
    resident_extents: Annotated[tuple[Index, ...], Field(max_length=MAX_EXTENTS)] = ()
    """Indices of the extents that stay in fast memory between jobs, ascending."""
    ring_extents: Annotated[Count, Field(le=MAX_EXTENTS)] = 0
    """Extents of the ring through which the others stream; 0 when all are resident."""
    workspace_bytes: Count = 0
    """Fast memory for everything that is not weights, in bytes."""
    homes: Annotated[tuple[Home, ...], Field(max_length=1024)] = ()
    """The home tiers of extents 0, 1, …, run by run."""
    predicted_job_time_s: Seconds
    """The worst time of one release that runs alone, streaming included; by the mean of a Soft task
    that yields the device; after it a job has no rank any more."""
    predicted_response_time_s: Seconds | None = None
    """The worst time from release to end among all admitted tasks; absent where none
    is guaranteed: BestEffort, and Soft by its mean."""
    calls: PositiveCount | None = None
    """How many jobs a release has, at most; absent: one of each arena."""
    predicted_call_time_s: Seconds | None = None
    """The worst time of one of them; absent: that of the whole release."""
    between_s: Seconds = 0.0
    """What passes between them, in all, at most: as long the device is kept for the next one."""
    jitter_s: Seconds = 0.0
    """How long after its release a job asks for the device, at most; it is planned as due so much
    sooner after that."""
    first_s: Seconds = 0.0
    """How long a first job of its program may have the device while others wait: so much is charged
    to all tasks of the device, for any number of restarts; 0 if that was not measured."""
    preemption: Preemption | None = None
    """How its jobs give the device away in the middle; absent if they keep it to their end."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        resident, count = self.resident_extents, self.extent_count
        if any(low >= high for low, high in pairwise(resident)):
            raise ValueError("residentExtents must be ascending without repetition")
        if resident and resident[-1] >= count:
            raise ValueError(f"residentExtents names extent {resident[-1]} of {count}")
        if (homed := sum(home.extents for home in self.homes)) != count:
            raise ValueError(f"homes name tiers for {homed} extents; extentCount is {count}")
        if self.ring_extents > count:
            raise ValueError(f"ringExtents {self.ring_extents} exceeds extentCount {count}")
        if len(resident) < count and not self.ring_extents:
            raise ValueError("ringExtents must be at least 1 when an extent is not resident")
        return self

    def holds_as(self, other: Self) -> bool:
        """Whether both lie in memory in the same way: what is predicted and yielded may differ."""
        others = (
            "predicted_job_time_s",
            "predicted_response_time_s",
            "calls",
            "predicted_call_time_s",
            "between_s",
            "jitter_s",
            "first_s",
            "preemption",
        )
        return self.model_copy(update={name: getattr(other, name) for name in others}) == other

    @property
    def call_time_s(self) -> float:
        """The worst time of one job of a release."""
        whole_s = self.predicted_job_time_s
        return whole_s if self.predicted_call_time_s is None else self.predicted_call_time_s

    @property
    def resident_bytes(self) -> int:
        """Fast memory of the resident set in bytes."""
        return len(self.resident_extents) * self.extent_bytes

    @property
    def streamed_extents(self) -> list[int]:
        """Indices of the extents that stream in each job, ascending."""
        resident = frozenset(self.resident_extents)
        return [extent for extent in range(self.extent_count) if extent not in resident]

    @property
    def home_of_extent(self) -> list[Tier]:
        """The home tier of each extent."""
        return [home.tier for home in self.homes for _ in range(home.extents)]
