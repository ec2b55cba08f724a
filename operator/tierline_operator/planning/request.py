"""A question to the planner: tasks with their measured times, and a device with its tiers.

Plain values; where they come from (profiles, nodes, a command line) is not this package's business.
Sizes are bytes, times seconds. Invariant: what these constructors accept, the planner can plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tierline_api.devices.fast_memory import Contexts
from tierline_api.layout import ArenaLayout
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.held import Held
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.wishes import Wish


@dataclass(frozen=True)
class TaskDemand:
    """One task. Compute times are worst cases per layer that is not pinned (see fold_compute)."""

    name: str
    domain: str
    """Trust domain (namespace): tasks of one domain share a ring, and copies of equal weights."""
    period_s: float
    deadline_s: float
    layout: ArenaLayout
    compute_s: Sequence[float]
    workspace_bytes: int = 0
    workspace_known: bool = True
    """Whether that is all its jobs take, by measurement or because somebody said so."""
    tiers: Sequence[str] = ("dram",)
    """Tiers that may hold the weights, the preferred one first."""
    policy: SwapPolicy = SwapPolicy.AUTO
    """Auto: resident as far as it helps. Resident: all of it. Stream: resident only as far as a
    deadline needs it. Swap (whole-task swapping is not offered, streaming is never slower): streams
    everything that can be streamed."""
    criticality: Criticality = Criticality.HARD
    mean_compute_s: Sequence[float] | None = None
    """Mean times: what a Soft task is admitted by where its jobs can be held to that, or where no
    task of the device is Hard (admission/preemption.py)."""
    reserved_bytes: int = 0
    """Fast memory that the task keeps whatever the plan needs, workspace included."""
    implicit_deadline: bool = False
    """Whether nobody wrote its deadline, so that it is the period whatever that is."""
    activation_bytes: int | None = None
    """Live bytes of the workspace where a layer ends, at most: what stays parked while the task is
    preempted. None: all of the workspace."""
    in_extents: bool = False
    """Whether its workspace lies in extents of the agent, which tasks of its domain have in turns:
    a program without layers, policy Swap."""
    preserved_bytes: int = 0
    """Workspace content that must survive other tasks' jobs: it is written back and restored."""
    weights_digest: str = ""
    """Equal digests in one domain share their copies in the lower tiers; "" shares nothing."""
    calls: Sequence[int] = ()
    """How many jobs of each arena a release has; those that are not named have one. A task without
    layers has their sum, and `compute_s` is of all of them."""
    between_s: float = 0.0
    """Time of a release between them, in all."""
    jitter_s: float = 0.0
    """How long after its release the first one asks for the device, at most."""
    first_section_s: float | None = None
    """How long a first job of its program has the device at once, at most, where it gives it away;
    None: nothing is known, so nothing is charged."""
    first_extra_s: float = 0.0
    """How much longer than its worst a first job takes."""
    trains: bool = False
    """Its jobs are steps that give the device away where they stand at a gate and anybody waits: so
    they keep others waiting for `first_section_s` at most, and only that. It has no deadline."""
    state_bytes: int = 0
    """Bytes that stay in fast memory from step to step, in addition to what one allocates."""
    longest_s: Sequence[float] = ()
    """The longest time of each layer in any job. It may be more than in `compute_s`, which are
    parts of the longest job; without it no layer takes longer than there."""
    wishes: Sequence[Wish] = ()
    """Its wishes for some of its layers, which every plan fulfils."""
    held: Held | None = None
    """The holding of a running pod of it; then that is its plan, whatever policy and wishes say."""

    @property
    def simple(self) -> bool:
        """Whether a release is one job, and counts by its worst."""
        return self.mean_compute_s is None and self.release_calls == 1

    @property
    def working_bytes(self) -> int:
        """Fast memory that it takes besides weights in extents."""
        return self.workspace_bytes + self.state_bytes

    @cached_property
    def release_calls(self) -> int:
        """How many jobs a release has."""
        unnamed = {arena for arena in self.layout.layer_arena if arena >= len(self.calls)}
        return max(1, sum(self.calls) + len(unnamed))

    @cached_property
    def kept(self) -> frozenset[int]:
        """Extents that are resident in every plan, because it wishes so."""
        wishes = () if self.held is not None else self.wishes
        return frozenset(extent for wish in wishes for extent in wish.kept)

    @cached_property
    def streamed(self) -> frozenset[int]:
        """Extents that are resident in none."""
        wishes = () if self.held is not None else self.wishes
        return frozenset(extent for wish in wishes for extent in wish.streamed)

    @cached_property
    def wished_homes(self) -> dict[int, Wish]:
        """Extents that have their home where a wish says."""
        wishes = () if self.held is not None else self.wishes
        return {extent: wish for wish in wishes for extent in wish.homed}

    def __post_init__(self) -> None:
        """Refuse what has no meaning, naming task and field."""
        if not 0 < self.deadline_s <= self.period_s:
            raise ValueError(
                f"cannot plan task {self.name}: its deadline of {self.deadline_s} s is not within "
                f"(0, {self.period_s} s], its period; give 0 < deadline <= period"
            )
        misfit = self.held.misfit(self.layout) if self.held is not None else None
        if misfit:
            raise ValueError(f"cannot plan task {self.name} by what its pod holds: {misfit}")
        if self.trains and self.criticality is not Criticality.BEST_EFFORT:
            raise ValueError(f"cannot plan task {self.name}: one that trains has no deadline")
        layers = self.layout.layer_count
        for times in (self.compute_s, self.mean_compute_s):
            if times is None:
                continue
            if len(times) != layers and (layers or len(times) > 1):
                raise ValueError(
                    f"cannot plan task {self.name}: {len(times)} compute times for {layers} layers"
                )
            if any(not 0 <= seconds < float("inf") for seconds in times):
                raise ValueError(f"cannot plan task {self.name}: a compute time is not finite")


@dataclass(frozen=True)
class TierCapacity:
    """A tier of the device: how much it holds and how fast its link is, at its measured worst."""

    capacity_bytes: int
    link: LinkRate


@dataclass(frozen=True)
class Margins:
    """Safety factors, at least 1: compute times and overheads of links are multiplied by them,
    bandwidths divided."""

    compute: float = 1.0
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        """Refuse margins below 1: they would admit what the measurements refuse."""
        if self.compute < 1 or self.bandwidth < 1:
            raise ValueError(f"margins must be at least 1, not {self.compute}, {self.bandwidth}")


@dataclass(frozen=True)
class Backup:
    """The way out of fast memory for preserved workspaces, and back; at their measured worst."""

    save: LinkRate
    restore: LinkRate


@dataclass(frozen=True)
class DeviceCapacity:
    """One device: fast memory and the tiers below it."""

    fast_bytes: int
    tiers: dict[str, TierCapacity]
    margins: Margins = field(default_factory=Margins)
    unmeasured: frozenset[str] = frozenset()
    """Tiers that are there, and of whose links nothing is known."""
    dispatch_s: float = 0.0
    """Time from a free device to the start of the next job's copies (the lease's way there)."""
    gate_s: float = 0.0
    """Time a gate adds to each layer."""
    supports: frozenset[Scheduling] = frozenset({Scheduling.NON_PREEMPTIVE})
    """The ways of scheduling of the device's agent. A plan that needs more is not admitted: a proof
    about jobs that yield says nothing of a device on which they do not."""
    yields_while_waiting: bool = True
    """Whether a job that waits for data is preempted there and then; else it gets them first."""
    in_turn: bool = False
    """Whether one engine copies from all tiers, in the order of the stream, as a GPU's does; else
    their links copy at the same time."""
    backup: Backup | None = None
    """None: no measured link, so no workspace can be preserved."""
    workspaces_overlay: bool = True
    """Whether its programs give the memory of their workspaces back between jobs; else the sum of
    all workspaces counts, not the largest."""
    contexts: Contexts | None = None
    """Memory that its processes take in addition to fast memory; None: nothing."""
    headroom: float = 0.5
    """Share of the fast memory that no pod holds which plans leave to those to come, where that is
    enough: what a pod gets is its own until it ends."""
    blocked_extents: int = 1
    """Extents of something else that may be on a link when a job is dispatched, for each that it
    serves at a time (P3)."""

    def __post_init__(self) -> None:
        """Refuse a device that schedules in no way at all."""
        if not self.supports:
            raise ValueError("a device must support one way of scheduling; name it in `supports`")
