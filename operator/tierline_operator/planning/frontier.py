"""The whole trade of one task: job time against fast memory, over all rings and resident sets.

For a person who asks what memory buys. It proves no deadline: other tasks do not appear in it.

Invariant: fast memory rises and job time falls, strictly; the last point is as fast as fully
resident, unless the task's policy forbids that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.homes.placing import placements
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.options import Task, rings_to_try


@dataclass(frozen=True)
class TradePoint:
    """One plan worth having. Sizes in bytes, times in seconds."""

    fast_bytes: int
    """Resident set, ring and workspace together."""
    resident_extents: int
    ring_extents: int
    streamed_bytes: int
    job_time_s: float


def frontier(demand: TaskDemand, device: DeviceCapacity) -> list[TradePoint] | Infeasible:
    """The undominated plans of one task alone on `device`, fast memory ascending.

    Infeasible if no tier has room for its weights.
    """
    placed = placements([demand], device)
    if isinstance(placed, Infeasible):
        return placed
    task = Task(demand, placed[0].homes[0], device)
    sizes = demand.layout.extent_sizes
    points = []
    for rings in rings_to_try([task]):
        for option in task.options(rings[demand.domain]):
            ring = min(rings[demand.domain], option.point.streamed_extents)
            points.append(
                TradePoint(
                    fast_bytes=(option.extents + ring) * demand.layout.extent_bytes
                    + demand.working_bytes,
                    resident_extents=option.extents,
                    ring_extents=ring,
                    streamed_bytes=sum(
                        size
                        for extent, size in enumerate(sizes)
                        if extent not in option.point.resident
                    ),
                    job_time_s=option.job_time_s,
                )
            )
    points.sort(key=lambda point: (point.fast_bytes, point.job_time_s))
    kept: list[TradePoint] = []
    for point in points:
        if not kept or point.job_time_s < kept[-1].job_time_s:
            kept.append(point)
    return kept
