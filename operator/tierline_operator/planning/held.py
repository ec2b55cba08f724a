"""The plan that a running pod holds, in force, to which the plans of others are added.

Memory that a program has mapped cannot be taken back while it runs, nor can it be given more: a new
plan takes effect at the pod's next start. So what is held is a constant of every proof: the same
resident extents, the same slots of the ring, the same homes, the same workspace, and jobs that give
the device away in the middle or do not. Job times are worked out again for the links as they are
now. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tierline_api.layout import ArenaLayout
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import HomeRun, TaskPlan


@dataclass(frozen=True)
class Yielding:
    """How its jobs give the device away in the middle."""

    scheduling: Scheduling
    parked_bytes: int
    layer_s: float = field(compare=False)
    """How soon a job stood at a gate when the plan was made."""
    penalty_s: float = field(compare=False)
    """The cost of one preemption then."""


@dataclass(frozen=True)
class Held:
    """A plan in force; two are equal if the same is held."""

    extent_bytes: int
    extent_count: int
    resident_extents: tuple[int, ...]
    ring_extents: int
    """Slots that it uses of its domain's ring, however large that is."""
    workspace_bytes: int
    homes: tuple[HomeRun, ...]
    job_time_s: float = field(compare=False)
    """The worst time of a job when the plan was made, margins included."""
    calls: int = field(default=1, compare=False)
    """How many jobs a release had."""
    yielding: Yielding | None = None
    """None: its jobs keep the device to their end."""

    @property
    def streamed_extents(self) -> int:
        """Extents that pass through the ring in each job."""
        return self.extent_count - len(self.resident_extents)

    @property
    def home_of_extent(self) -> tuple[str, ...]:
        """The home tier of each extent."""
        return tuple(run.tier for run in self.homes for _ in range(run.extents))

    def misfit(self, layout: ArenaLayout) -> str | None:
        """Why layers that lie so cannot run by this plan, as a clause; None if they can."""
        if (self.extent_bytes, self.extent_count) != (layout.extent_bytes, layout.extent_count):
            return (
                f"its weights now lie in {layout.extent_count} extents of {layout.extent_bytes} "
                f"bytes, and the plan is for {self.extent_count} of {self.extent_bytes}"
            )
        resident = frozenset(self.resident_extents)
        if not layout.pinned_extents <= resident:
            return "weights that must stay resident are streamed by the plan"
        for layer, (first, last) in enumerate(
            zip(layout.first_extent, layout.last_extent, strict=True)
        ):
            streamed = sum(extent not in resident for extent in range(first, last + 1))
            if streamed > self.ring_extents:
                return (
                    f"layer {layer} now reads {streamed} streamed extents and the plan's ring has "
                    f"{self.ring_extents}"
                )
        return None


def held_by(plan: TaskPlan, scheduling: Scheduling = Scheduling.NON_PREEMPTIVE) -> Held:
    """The holding of a pod that starts with this plan, which was made for `scheduling`."""
    yielding = Yielding(scheduling, plan.parked_bytes, plan.layer_s, plan.penalty_s)
    return Held(
        extent_bytes=plan.extent_bytes,
        extent_count=plan.extent_count,
        resident_extents=plan.resident_extents,
        ring_extents=plan.ring_extents,
        workspace_bytes=plan.workspace_bytes,
        homes=plan.homes,
        job_time_s=plan.job_time_s,
        calls=plan.calls,
        yielding=yielding if plan.preemptible else None,
    )
