"""One more task on a device, in addition to the plans there, in about a millisecond.

Planning a whole device again gives everybody's exact response and the best use of memory, and takes
tens of milliseconds. When many tasks wait, each is first added to what is there as it is: nobody
else's plan changes, and every response is promised by its deadline (planning/incremental.py proves
it). Only a task that finds no place so is planned together with all others of a device.

What was proven of a device is kept for the next one that comes, for as many devices as fit into
`_MOST_POINTS`. Invariant: what is kept of a device is of exactly the tasks that are planned there;
the book drops it with every other change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from tierline_api.objects.swap import SwapPolicy
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.proof import named
from tierline_operator.placement.books.seats import DeviceKey
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.held import held_by
from tierline_operator.planning.incremental import ProvenSet, settle
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

_MOST_POINTS = 4_000_000
"""Windows of all proofs that are kept, 16 bytes each."""
_BY_WHAT_IS_FREE = {SwapPolicy.AUTO, SwapPolicy.RESIDENT}
"""A task that is to stream takes what its deadline needs, which is found by searching."""


class ProvenSets:
    """Proofs about devices that were made lately."""

    def __init__(self) -> None:
        self._kept: OrderedDict[DeviceKey, ProvenSet] = OrderedDict()
        self._points = 0

    def with_one_more(
        self, ledger: Ledger, demand: TaskDemand, capacity: DeviceCapacity
    ) -> ProvenSet | None:
        """The proof of the device with one more task, the last of it; None if it must be planned.

        It is not kept: the task may still be refused for another reason.
        """
        if demand.policy not in _BY_WHAT_IS_FREE or demand.held is not None:
            return None
        *others, one = named([*(d for d, _ in ledger.planned), demand])
        proven = self._kept.get(ledger.key)
        if proven is None:
            proven = _as_planned(ledger, others, capacity)
        else:
            self._kept.move_to_end(ledger.key)
            proven = replace(proven, device=capacity)
        return None if proven is None else proven.with_task(one)

    def keep(self, key: DeviceKey, proven: ProvenSet) -> None:
        """Remember what a device's tasks were admitted with; forget what was longest unused."""
        self.drop(key)
        self._kept[key] = proven
        self._points += _points(proven)
        while self._points > _MOST_POINTS:
            self.drop(next(iter(self._kept)))

    def drop(self, key: DeviceKey) -> None:
        """The tasks of a device, or the device itself, changed."""
        proven = self._kept.pop(key, None)
        self._points -= _points(proven) if proven is not None else 0


def _as_planned(
    ledger: Ledger, demands: Sequence[TaskDemand], capacity: DeviceCapacity
) -> ProvenSet | None:
    """Proven again by the plans as they are: there is one choice for everyone."""
    seats = [seat for seat in ledger.seats if seat.demand and seat.plan]
    fixed = [
        replace(demand, held=held_by(seat.plan, seat.scheduling))
        for demand, seat in zip(demands, seats, strict=True)
        if seat.plan is not None
    ]
    try:
        proven = settle(fixed, capacity)
    except ValueError:
        return None
    return None if isinstance(proven, Infeasible) else proven


def _points(proven: ProvenSet) -> int:
    return len(proven.curve.points) if proven.curve is not None else 0
