"""Which job holds the device: earliest absolute deadline first.

The device is an EDF server. A holder keeps the lease until it gives it back; one whose plan makes
it preemptible is asked to, at its next gate, as soon as an earlier deadline waits. Ties go to the
claim that arrived first, so that the order is total and nothing starves inside a rank.

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

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Sorts claims; the smallest goes first."""
        return (self.rank, self.deadline_ns, self.arrival)


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


def decide(holder: Claim | None, waiting: Iterable[Claim]) -> Decision:
    """What to do with the lease, given who holds it and who waits."""
    if holder is not None:
        return Ask() if holder.preemptible and yields(holder, waiting) else Keep()
    first = min(waiting, key=lambda claim: claim.urgency, default=None)
    return Keep() if first is None else Grant(first.key)


def yields(holder: Claim, waiting: Iterable[Claim]) -> bool:
    """Whether a holder that stands at a gate gives the lease away: only to an earlier deadline."""
    order = (holder.rank, holder.deadline_ns)
    return any((claim.rank, claim.deadline_ns) < order for claim in waiting)
