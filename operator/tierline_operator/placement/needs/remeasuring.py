"""Measured over-runs in what tasks are planned with. Pure.

A node's agent reports what two of a pod's last jobs took when they over-ran its plan. From then on
the pods of that task on that node are planned with layers so much longer (planning/overruns.py),
those that run and those to come. What was learned of a task is in its status, and so outlives the
operator; it is forgotten with the generation of the profile that it corrects.

It cannot oscillate, nor can a node's agent have more done than a number of new proofs: times only
rise, each time by `_STEP` or more, up to a bound. And what an agent says counts on its own node.

Where the set of a device no longer holds with such times, all that runs goes on by the times it was
admitted with, and the tasks concerned are told: no pod loses its rank for what it was seen to take.
But nothing new is placed there, because nothing could be promised to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTaskSpec
from tierline_api.objects.memtask_status import MAX_REMEASURED, Remeasured
from tierline_operator.admission.demand import NS
from tierline_operator.planning.overruns import MOST, longer
from tierline_operator.planning.request import TaskDemand

_STEP: Final = 1.05
_SAME: Final = 1.000_001
"""Times that were learned are kept in whole nanoseconds."""
_LONGEST_S: Final = 24 * 3600.0
"""The longest duration of the API."""


@dataclass(frozen=True)
class Longer:
    """The worst computing time of a task's job on a node."""

    profile: str
    """The profile that this corrects."""
    compute_s: float


def identity(profile: MemProfile) -> str:
    """A profile as it is written: another one of its name has another identity."""
    return f"{profile.metadata.uid or profile.name}/{profile.metadata.generation or 0}"


def factor_on(
    known: Mapping[str, Longer], node: str, spec: MemTaskSpec, profile: MemProfile
) -> float:
    """By how much layers are longer on a node than profile or spec state; at least 1."""
    learned = known.get(node)
    stated_s = _stated_s(spec, profile)
    if learned is None or learned.profile != identity(profile) or stated_s <= 0:
        return 1.0
    return max(1.0, learned.compute_s / stated_s)


def raised(factor: float, needed: float, spec: MemTaskSpec, profile: MemProfile) -> Longer | None:
    """The new figures when a job needs layers longer by `needed`; None: `factor` is enough."""
    stated_s = _stated_s(spec, profile)
    if needed <= _SAME * factor or stated_s <= 0:
        return None
    rising = needed if factor == 1.0 else max(needed, _STEP * factor)
    compute_s = min(stated_s * min(rising, MOST), _LONGEST_S)
    if compute_s <= stated_s * factor:
        return None
    return Longer(identity(profile), round(compute_s * NS) / NS)


def stretched(demand: TaskDemand, factor: float) -> TaskDemand:
    """The demand with layers that are longer by `factor`, not alike to any other task's."""
    if factor == 1.0:
        return demand
    return longer(replace(demand, layout=replace(demand.layout)), factor)


def differ(one: TaskDemand, other: TaskDemand) -> bool:
    """Whether the same task is asked for with other times."""
    return tuple(one.compute_s) != tuple(other.compute_s)


def restored(status: tuple[Remeasured, ...]) -> dict[str, Longer]:
    """The figures that a status says were learned, by node."""
    return {one.node: Longer(one.profile, one.compute_time_s) for one in status}


def as_status(known: Mapping[str, Longer], profile: MemProfile | None) -> tuple[Remeasured, ...]:
    """The figures for a status; nothing of a profile that is another one by now."""
    if profile is None:
        return ()
    rows = [
        Remeasured(node=node, profile=one.profile, compute_time_s=one.compute_s)
        for node, one in sorted(known.items())
        if one.profile == identity(profile)
    ]
    return tuple(rows[:MAX_REMEASURED])


def _stated_s(spec: MemTaskSpec, profile: MemProfile) -> float:
    """How long a job computes by what people or a measurement stated."""
    stated_s = spec.realtime.execution_time_s
    return profile.spec.compute_s if stated_s is None else stated_s
