"""Do the tasks of one device hold together; and if not, which of them do?

The planner answers for the whole set. Where a device, a link or a profile has become worse since
the tasks were admitted, the set may not hold any more: then the tasks are taken up one by one,
running pods before places kept free (what pods hold is held, whatever is kept for others), Hard
before Soft before BestEffort, the longer admitted first. What no longer holds but has a running pod
is *demoted* to BestEffort if the others still hold with it then, else it is *lost*; a place kept
free is given up. So what is guaranteed is always proven.

What a pod is given stays its own until it ends. So plans make do with a part of the memory that no
pod holds, where that is enough for every deadline: the headroom (by default half) is left to the
pod that comes next, and the same part of that to the one after.

Pure. Invariant: the plans of all seats that stand Planned or Demoted come from one Admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tierline_api.objects.optin import Standing
from tierline_api.objects.realtime import Criticality
from tierline_operator.placement.needs.demands import demoted
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.working_memory import workspace_bytes

_RANK = {Criticality.HARD: 0, Criticality.SOFT: 1, Criticality.BEST_EFFORT: 2}


@dataclass(frozen=True)
class Ruling:
    """How one task of the set stands."""

    standing: Standing
    plan: TaskPlan | None
    refusal: Infeasible | None = None
    """Why it does not stand as asked."""


@dataclass(frozen=True)
class Proof:
    """One ruling per task, in the order given, and what the planner said of those that run."""

    rulings: tuple[Ruling, ...]
    answer: Admitted


def together(demands: Sequence[TaskDemand], device: DeviceCapacity) -> Admitted | Infeasible:
    """Ask the planner, with names made to differ.

    The headroom of what nobody holds is left for those to come where that is enough. A device that
    has become smaller than what is held has none to leave.
    """
    held = _held_bytes(demands, overlay=device.workspaces_overlay)
    room = device.fast_bytes - held
    within = held + int(room * (1 - device.headroom)) if room > 0 else None
    return plan(named(demands), device, within_bytes=within)


def _held_bytes(demands: Sequence[TaskDemand], *, overlay: bool) -> int:
    """Fast memory of what running pods hold: residents, parked, rings, workspaces."""
    resident = 0
    rings: dict[str, int] = {}
    for demand in demands:
        held = demand.held
        if held is not None:
            resident += held.yielding.parked_bytes if held.yielding is not None else 0
            resident += len(held.resident_extents) * held.extent_bytes
            ring = held.ring_extents * held.extent_bytes
            rings[demand.domain] = max(rings.get(demand.domain, 0), ring)
    running = [demand for demand in demands if demand.held is not None]
    return resident + sum(rings.values()) + workspace_bytes(running, overlay=overlay)


def prove(demands: Sequence[TaskDemand], running: Sequence[bool], device: DeviceCapacity) -> Proof:
    """Rule on tasks that were admitted before; `running` tells which have a pod."""
    whole = together(demands, device)
    if isinstance(whole, Admitted):
        return Proof(tuple(Ruling(Standing.PLANNED, p) for p in whole.plans), whole)
    kept: dict[int, TaskDemand] = {}
    refused: dict[int, Infeasible] = {}
    for index in sorted(
        range(len(demands)), key=lambda i: (not running[i], _RANK[demands[i].criticality], i)
    ):
        asked = [demands[index]] + ([demoted(demands[index])] if running[index] else [])
        for demand in asked:
            tried = {**kept, index: demand}
            answer = together(_in_order(tried), device)
            if isinstance(answer, Admitted):
                kept = tried
                break
            refused.setdefault(index, answer)
    answer = together(_in_order(kept), device)
    if isinstance(answer, Infeasible):
        raise TypeError("the planner refuses a set that it has just admitted")
    plans = dict(zip(sorted(kept), answer.plans, strict=True))
    standings = [_standing(index in plans, index in refused) for index in range(len(demands))]
    return Proof(
        tuple(Ruling(s, plans.get(i), refused.get(i)) for i, s in enumerate(standings)), answer
    )


def _standing(planned: bool, refused: bool) -> Standing:
    if not planned:
        return Standing.LOST
    return Standing.DEMOTED if refused else Standing.PLANNED


def _in_order(chosen: dict[int, TaskDemand]) -> list[TaskDemand]:
    return [chosen[index] for index in sorted(chosen)]


def named(demands: Sequence[TaskDemand]) -> list[TaskDemand]:
    """The same with names that differ: a task's second pod on a device is `namespace/task (2)`."""
    count: dict[str, int] = {}
    found = []
    for demand in demands:
        name = f"{demand.domain}/{demand.name}"
        count[name] = count.get(name, 0) + 1
        suffix = f" ({count[name]})" if count[name] > 1 else ""
        found.append(replace(demand, name=name + suffix))
    return found
