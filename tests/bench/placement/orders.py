"""What else fills tiers: the order in which tasks are given, and orders that caches keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.bench.placement.sets import Asked, Shares

from tierline_operator.planning.homes.sharing import Lot


def filled(asked: Asked, order: Sequence[int]) -> Shares:
    """Each task fills the first tier with room, then the next."""
    left = list(asked.room)
    shares: list[list[int]] = [[] for _ in asked.lots]
    for at in order:
        rest = asked.lots[at].extents
        for tier, room in enumerate(left):
            shares[at].append(min(rest, room))
            rest -= shares[at][-1]
            left[tier] -= shares[at][-1]
    return shares


def given(asked: Asked) -> Shares:
    """As `in order` of planning/homes/placing.py."""
    return filled(asked, range(len(asked.lots)))


def by(value: Callable[[Lot], float]) -> Callable[[Asked], Shares]:
    """The largest value first."""

    def fill(asked: Asked) -> Shares:
        order = sorted(range(len(asked.lots)), key=lambda at: -value(asked.lots[at]))
        return filled(asked, order)

    return fill


def rate(lot: Lot) -> float:
    """Jobs a second, as an LFU cache sees them."""
    return lot.weight


def density(lot: Lot) -> float:
    """What the whole model gains in the fastest tier, for each extent (GreedyDual-Size)."""
    slowest_s = max(lot.compute_s, lot.extents * lot.copy_s[-1])
    return lot.weight * (slowest_s - lot.floor_s) / lot.extents
