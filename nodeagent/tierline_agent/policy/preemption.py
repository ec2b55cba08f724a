"""What preemption at layer boundaries does to rings and streams, and what each job may use of it.

A job gives the device away where a layer ends or while it waits for data, to an earlier deadline
(`leases.decide`). What it has computed stays parked in its own memory. The rules for what it has
streamed are those that admission proved its deadlines with:

* who streams takes the ring of its domain when it gets the device: the job whose extents lie there
  loses them, and goes on later from the first extent that its next layer reads, with an empty ring
  (the restart penalty);
* a fully resident job takes no ring. In `RING_KEEPING` the copies for the interrupted job go on
  beside it, and nothing is streamed again; in `LAYER_PREEMPTIVE` a job loses its ring when it
  yields, whoever follows;
* one stream runs at a time. A job whose ring nobody took, but whose stream another domain's
  displaced, goes on behind what is in place; on a device that copies by itself, whose copies cannot
  be taken back, it has lost its ring, too.

A job may hold the device for its planned time, and once more the penalty for each ring it lost. One
that takes longer has no claim before its deadline any more: it goes on in what others leave.

Nothing here knows clocks, streams or clients.

Invariant: of the jobs of one domain at most one has extents in the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

YIELD_MINORS: Mapping[str, int] = {"cpu": 2, "cuda": 3}
"""The minor version of the protocol since which clients give a device away inside a job."""


class Scheduling(StrEnum):
    """What becomes of the ring of a job that yields; a job without such terms never does."""

    LAYER_PREEMPTIVE = "LayerPreemptive"
    RING_KEEPING = "RingKeeping"


@dataclass(frozen=True)
class Terms:
    """What the plan says of the preemptions of a task's jobs."""

    scheduling: Scheduling
    layer_ns: int
    """When it must stand at a gate after it was asked: its longest layer, and on a GPU what it may
    wait for before and behind it."""
    penalty_ns: int
    """What one preemption makes it do again, at worst."""
    parked_bytes: int
    """Fast memory for what a preempted job has computed so far."""


def budget_ns(planned_ns: int, penalty_ns: int, rings_lost: int) -> int:
    """How long a job may hold the device in all."""
    return planned_ns + rings_lost * penalty_ns


@dataclass
class Rings:
    """Whose extents lie in the ring of each domain, by keys of jobs."""

    _owners: dict[str, int] = field(default_factory=dict)

    def takes(self, domain: str, key: int) -> int | None:
        """A job that streams gets the device; returns the job that loses its ring by it."""
        before = self._owners.get(domain)
        self._owners[domain] = key
        return None if before == key else before

    def yields(self, domain: str, key: int, scheduling: Scheduling) -> bool:
        """A job gives the device away; returns whether it loses its ring at once."""
        if scheduling is Scheduling.RING_KEEPING or self._owners.get(domain) != key:
            return False
        del self._owners[domain]
        return True

    def ends(self, domain: str, key: int) -> None:
        """The job is over."""
        if self._owners.get(domain) == key:
            del self._owners[domain]


def goes_on_at(position: int, in_place: int, *, lost: bool) -> int:
    """The streamed extent with which a job's stream begins again.

    `position` is the first that its next layers read, `in_place` how many had arrived.
    """
    return position if lost else max(position, in_place)
