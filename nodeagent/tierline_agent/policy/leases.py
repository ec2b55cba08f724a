"""Which job holds the device: earliest absolute deadline first.

The device is an EDF server. A holder keeps the lease until it gives it back; one whose plan makes
it preemptible is asked to, at its next gate, as soon as an earlier deadline waits. Ties go to the
claim that arrived first, so that the order is total and nothing starves inside a rank.

A claim that comes before its time (`releases`) has the device only while no other one of its rank
waits whose time has come: else it would be served, again and again, before one that is due later.

The simulator of `tierline simulate` runs on the same rules.

Invariant: `decide` never answers `Grant` while there is a holder, and `Ask` only for a preemptible
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Rank(IntEnum):
    """Classes of claims; a lower one always goes first."""

    GUARANTEED = 0
    """A job of a hard or soft task."""
    BEST_EFFORT = 1
    """Runs in what is left."""
    WARMUP = 2
    """Loading and warm-up: has no deadline that anybody counts."""


@dataclass(frozen=True)
class Claim:
    """A job that wants, or has, the lease."""

    key: int
    """Chosen by the caller, unique among living claims."""
    deadline_ns: int
    """Absolute deadline."""
    arrival: int
    """Rises from claim to claim."""
    rank: Rank = Rank.GUARANTEED
    preemptible: bool = False
    """Whether it gives the lease away at a gate."""
    eligible_ns: int = 0
    """Its time: before that it takes only what nobody of its rank waits for."""

    def urgency(self, now_ns: int) -> tuple[int, bool, int, int]:
        """Sorts claims; the smallest goes first."""
        return (self.rank, self.eligible_ns > now_ns, self.deadline_ns, self.arrival)


@dataclass(frozen=True)
class Grant:
    """Give the free lease to this claim."""

    key: int


@dataclass(frozen=True)
class Ask:
    """Have the holder give the lease away at its next gate."""


@dataclass(frozen=True)
class Keep:
    """Change nothing."""


Decision = Grant | Ask | Keep


def decide(
    holder: Claim | None, waiting: Iterable[Claim], kept: Iterable[Claim] = (), *, now_ns: int
) -> Decision:
    """The next step of the lease, given its holder, those that wait, and those it is kept for."""
    if holder is not None:
        return Ask() if holder.preemptible and yields(holder, waiting, now_ns=now_ns) else Keep()
    first = min(waiting, key=lambda claim: claim.urgency(now_ns), default=None)
    if first is None or any(claim.urgency(now_ns) < first.urgency(now_ns) for claim in kept):
        return Keep()
    return Grant(first.key)


def yields(holder: Claim, waiting: Iterable[Claim], *, now_ns: int) -> bool:
    """Whether a holder that stands at a gate gives the lease away: only to an earlier deadline.

    One that began before its time goes on with it: it is the one that blocks. One that waits before
    its time takes nothing from one whose time has come.
    """
    order = (holder.rank, holder.deadline_ns)
    early = holder.eligible_ns > now_ns
    return any(
        (claim.rank, claim.deadline_ns) < order
        for claim in waiting
        if early or claim.rank < holder.rank or claim.eligible_ns <= now_ns
    )


def next_eligible_ns(waiting: Iterable[Claim], now_ns: int) -> int | None:
    """When the time of the next one comes that waits before it; None if of none."""
    return min((one.eligible_ns for one in waiting if one.eligible_ns > now_ns), default=None)
