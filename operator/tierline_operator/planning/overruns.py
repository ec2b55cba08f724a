"""By how much a task's layers must be longer for a job to take what one was seen to take.

A proof is for jobs that take no longer than their profile says, with the margin. Jobs that had the
device for longer make the profile wrong. Which layer took longer is not known, nor whether a link
did (links are measured by themselves): so all layers are taken to be longer by one factor, the
least with which the recursion that plans are made with gives a job of the plan in force the time
that was seen, without a margin. What is planned with it has its margin above what was seen.

Means stay as they are: they say nothing of the worst. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand
from tierline_operator.planning.search.options import Task
from tierline_operator.planning.writeback import turns_s

MOST: Final = 2.0**20
"""Layers that would have to be so many times longer say nothing."""
_CLOSE: Final = 1.001


def longer(demand: TaskDemand, factor: float) -> TaskDemand:
    """The same task with worst times that are longer by a factor."""
    return replace(
        demand,
        compute_s=tuple(seconds * factor for seconds in demand.compute_s),
        longest_s=tuple(seconds * factor for seconds in demand.longest_s),
    )


def factor_of(
    demand: TaskDemand,
    device: DeviceCapacity,
    resident_extents: Collection[int],
    ring_extents: int,
    homes: Sequence[str],
    took_s: float,
) -> float:
    """The least factor with which a job of such a plan takes `took_s` seconds there; 1 to MOST.

    1 also for what cannot be planned there by itself: then nothing is known of its jobs.
    """
    exact = replace(device, margins=Margins())
    resident = frozenset(resident_extents)

    turns = turns_s([demand], exact)
    if isinstance(turns, Infeasible) or len(homes) != demand.layout.extent_count:
        return 1.0
    if not set(homes) <= set(exact.tiers):
        return 1.0

    def takes_s(factor: float) -> float:
        alone = Task(longer(demand, factor), homes, exact, turns[0])
        return alone.worst.call_s(resident, ring_extents) + alone.dispatch_s

    low, high = 1.0, 1.0
    while takes_s(high) < took_s and high < MOST:
        low, high = high, min(MOST, high * 2)
    while high > low * _CLOSE:
        middle = (low + high) / 2
        if takes_s(middle) < took_s:
            low = middle
        else:
            high = middle
    return high
