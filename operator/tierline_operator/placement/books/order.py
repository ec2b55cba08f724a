"""Devices in the order in which they are tried: the least loaded first.

Kept in order as loads change, so that finding a place for a task looks at few devices, not at all.
Invariant: every device that was put and not dropped is there once, by its load and number of seats
when it was last put. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter

from tierline_operator.placement.books.seats import DeviceKey

_Rank = tuple[float, int, DeviceKey]


class Order:
    """The devices of a book."""

    def __init__(self) -> None:
        self._ranks: list[_Rank] = []
        self._rank_of: dict[DeviceKey, _Rank] = {}

    def put(self, key: DeviceKey, load: float, seats: int) -> None:
        """A device is new, or its load (a share of its time) or its number of seats changed."""
        self.drop(key)
        rank = load, seats, key
        self._rank_of[key] = rank
        insort(self._ranks, rank)

    def drop(self, key: DeviceKey) -> None:
        """A device is gone; one that was never there may be dropped."""
        rank = self._rank_of.pop(key, None)
        if rank is not None:
            del self._ranks[bisect_left(self._ranks, rank)]

    def keys(self) -> Iterator[DeviceKey]:
        """The devices as they stand now; later changes do not show."""
        return map(itemgetter(2), self._ranks.copy())
