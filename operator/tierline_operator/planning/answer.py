"""The planner's answer: plans with their proof, or what stands in the way.

Sizes are bytes, times seconds. Invariant: an Admitted holds a plan for every task asked about, in
the order asked, and its sums respect every limit of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from tierline_operator.admission.preemption import Scheduling

Limit = Literal["deadline", "memory", "ring", "tier"]
RefusalWord = Literal[
    "DeadlineMissed",
    "Overload",
    "UtilisationUnproven",
    "FastMemoryExceeded",
    "LayerTooLarge",
    "TierFull",
    "TierUnknown",
]
"""Stable words for scripts: docs/reference/reasons.md has their meanings."""


class HomesBy(StrEnum):
    """The rule by which the weights of a task have their homes, as far as it does not wish them."""

    HELD = "held"
    """A running pod has them there."""
    ORDER = "order"
    """The first of its tiers that has room when its turn comes."""
    GAIN = "gain"
    """Scarce tiers go first to what deadlines need, then to whom they gain most."""


@dataclass(frozen=True)
class HomeRun:
    """So many consecutive extents have their home in this tier."""

    tier: str
    extents: int


@dataclass(frozen=True)
class TaskPlan:
    """The grant of one task."""

    name: str
    extent_bytes: int
    extent_count: int
    resident_extents: tuple[int, ...]
    """Extent numbers over all arenas, ascending, pinned ones included."""
    ring_extents: int
    """Slots the task uses of its domain's ring; 0 if nothing streams."""
    workspace_bytes: int
    homes: tuple[HomeRun, ...]
    """Home tier of extents 0, 1, …, run by run."""
    job_time_s: float
    """Worst time of a release that has the device, margins included. Of a Soft task that yields and
    is admitted by its mean: what its jobs are held to."""
    compute_s: float
    """Its time with all weights resident, margins included."""
    streamed_bytes: int
    """Bytes copied in each job."""
    calls: int
    """How many jobs a release has, at most."""
    call_s: float
    """Worst time of one of them."""
    between_s: float
    """Time that passes between them, in all, at most."""
    jitter_s: float
    """How long after its release the first one asks for the device, at most."""
    response_s: float | None
    """Worst time from release to end; None where nothing is guaranteed (BestEffort, and Soft by its
    mean)."""
    preemptible: bool = False
    """Whether its jobs give the device away where a layer ends."""
    parked_bytes: int = 0
    """Fast memory for what a preempted job has computed so far."""
    penalty_s: float = 0.0
    """Time that one preemption makes a job do again, at worst."""
    first_s: float = 0.0
    """How long a first job of its program may keep others waiting; 0 if that was not measured."""
    layer_s: float = 0.0
    """How soon after it was asked, or dispatched, a job stands at a gate, at worst: its longest
    layer, margins included, and where they cannot be broken off its waits for data (waits.py)."""
    homes_by: HomesBy = field(default=HomesBy.ORDER, compare=False)

    @property
    def home_of_extent(self) -> tuple[str, ...]:
        """The home tier of each extent."""
        return tuple(run.tier for run in self.homes for _ in range(run.extents))


@dataclass(frozen=True)
class Admitted:
    """Every deadline holds."""

    plans: tuple[TaskPlan, ...]
    utilisation: float
    """Share of time that jobs hold the device, at worst."""
    critical_time_s: float
    """The window with the least slack."""
    slack_s: float
    """Its slack."""
    blocker: str | None
    """The task that may block that window."""
    fast_bytes_used: int
    workspace_bytes: int = 0
    """The part of that for the workspaces of all tasks together."""
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE
    """The scheduling that the proof needs to hold."""
    remarks: tuple[str, ...] = ()
    """Surprises for a person about the plans, a sentence each."""

    @property
    def ok(self) -> bool:
        """True: the tasks may start."""
        return True


@dataclass(frozen=True)
class Infeasible:
    """No plan was found; `sentence` is for a person, the rest for programs."""

    kind: Limit
    reason: RefusalWord
    sentence: str
    """Which constraint fails, by how much, and one change that would help."""
    task: str | None = None
    """The task whose deadline, memory or tier it is."""
    wish: tuple[str, str] | None = None
    """A task and the object of it whose wish cannot be; without it the set holds, or is refused for
    another reason."""
    critical_time_s: float | None = None
    blocker: str | None = None
    shortfall_s: float | None = None
    """Missing time in the critical window (infinite on overload)."""
    missing_bytes: int | None = None
    """Memory that would be enough; None if no memory helps. Where not even the smallest plans fit,
    it may be no more than what these lack: the sentence says "at least" then."""
    instead: str = ""
    """An alternative to more memory for the device, for the sentence."""
    nearest: tuple[TaskPlan, ...] = ()
    """The plans that came nearest, with the memory that there is; empty if none fits."""
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE
    """The way of scheduling that came nearest."""
    cut_short: bool = False
    """Whether the search ended with plans left that it did not try: not proven impossible."""

    @property
    def ok(self) -> bool:
        """False: starting the tasks would break a promise."""
        return False
