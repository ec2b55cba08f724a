"""Preemption at layer boundaries: its effect on rings and streams, and each job's use of it.

A job gives the device away where a layer ends or while it waits for data, to an earlier deadline
(`leases.decide`). What it has computed stays parked in its own memory. The rules for what it has
streamed are those that admission proved its deadlines with:

* a job that streams takes the ring of its domain when it gets the device: the job whose extents lie
  there loses them, and goes on later from the first extent that its next layer reads, with an empty
  ring (the restart penalty);
* a fully resident job takes no ring. In `RING_KEEPING` the copies for the interrupted job go on
  meanwhile, and nothing is streamed again; in `LAYER_PREEMPTIVE` a job loses its ring when it
  yields, whichever follows;
* one stream runs at a time. A job whose ring nobody took, but whose stream another domain's
  displaced, goes on after what is in place; on a device that copies by itself, whose copies cannot
  be taken back, it has lost its ring, too.

A job may hold the device for its planned time, and for what others were charged when they preempted
it: a dispatch for each time that it went on, and the penalty for each time that its stream began
again. One that takes longer has no claim before its deadline any more: it goes on in what others
leave.

A job without an arena has no gates, also where its task's others do: it keeps the device to its
end. Admission took it for a layer of its task. So it has its task's rank only as long as it is no
longer than one: after one that was, the next goes after all others, as jobs of a program that
starts do (`has_rank`), until one is as short again.

Nothing here knows clocks, streams or clients.

Invariant: of the jobs of one domain at most one has extents in the ring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Scheduling(StrEnum):
    """The fate of the ring of a job that yields; a job without such terms never does."""

    LAYER_PREEMPTIVE = "LayerPreemptive"
    RING_KEEPING = "RingKeeping"


@dataclass(frozen=True)
class Terms:
    """The plan's terms for preemptions of a task's jobs."""

    scheduling: Scheduling
    layer_ns: int
    """When it must stand at a gate after it was asked: its longest layer, and on a GPU what it may
    wait for before and after it."""
    parked_bytes: int
    """Fast memory for what a preempted job has computed so far."""


@dataclass(frozen=True)
class Allowance:
    """How long a job may hold the device, nanoseconds."""

    planned_ns: int
    """If nothing preempts it."""
    resume_ns: int
    """How much longer for each time that it went on: its way back to the device."""
    penalty_ns: int
    """How much longer for each time that its stream began again."""

    def budget_ns(self, ways_back: int, restarts: int) -> int:
        """In all."""
        return self.planned_ns + ways_back * self.resume_ns + restarts * self.penalty_ns


def has_rank(gateless_ns: int, layer_ns: int) -> bool:
    """Whether a job without gates has its task's rank: if the last one took no longer than a layer.

    `gateless_ns` is how long that had the device, 0 if there was none.
    """
    return gateless_ns <= layer_ns


@dataclass
class Rings:
    """Which job's extents lie in the ring of each domain, by keys of jobs."""

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
