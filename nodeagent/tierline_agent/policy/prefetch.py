"""Prefetching for a task's next job: whether, where, and what is left of it.

When a job's stream is complete, its ring empties while its last layers run, and stays empty until
the next job. If that is the same task's, it begins with the same extents: so they are copied in
advance, each as soon as the slot where it belongs is free. They are for latency only and earn no
admission credit. So that no proof is touched by them (P4 in docs/design/theory.md),

* they begin only while nobody else has the device, wants it, or has parked a job on it,
* no more extents are on their way at a time than a link may have in flight (`transfers.IN_FLIGHT`):
  the next job waits for no more than that, which is in its plan (P3); they may be any of those
  whose slots are free, but each counts only when those before it are there,
* they end as soon as anybody else asks for the device.

What has arrived stays good until another arena's job takes the ring of the domain, whatever else
had the device meanwhile. A job that is parked loses it: its own slots are all that counts then.

Nothing here knows devices, clocks or clients.

Invariant: what `Prefetched` says to lie in a ring is there, whole, from the arena's first streamed
extent on and without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field


def reach(extents: int, ring_slots: int) -> int:
    """How many of an arena's first streamed extents have room in its ring."""
    return min(extents, ring_slots)


def freed_by(extent: int, extents: int, ring_slots: int) -> int:
    """How many streamed extents a job must have consumed before its next one's `extent` is copied.

    Those up to the last one that lay in the same slot; `extents` is how many the job has.
    """
    return extent + ring_slots * ((extents - 1 - extent) // ring_slots) + 1


@dataclass(frozen=True)
class Situation:
    """The state of a device on which no job streams, or the one whose next one is copied for."""

    waiting: int
    """Jobs that wait for it."""
    parked: int
    """Jobs that gave it away and want it back."""
    blocked: bool
    """Nobody would be given the device at the moment."""
    others_hold: bool
    """A job has it whose arena is another one, or whose stream begins again; not what the client
    that is copied for does outside its jobs."""


def may_prefetch(now: Situation) -> bool:
    """Whether prefetching for a next job may begin."""
    return not (now.waiting or now.parked or now.blocked or now.others_hold)


@dataclass(frozen=True)
class Prefix:
    """First extents of an arena that lie in its domain's ring."""

    arena: object
    extents: int
    size_bytes: int


@dataclass
class Prefetched:
    """The content of each domain's ring, for a next job."""

    _prefixes: dict[str, Prefix] = field(default_factory=dict)

    def keep(self, domain: str, prefix: Prefix) -> None:
        """Copies for a next job have ended, and nobody else took the ring meanwhile."""
        if prefix.extents:
            self._prefixes[domain] = prefix

    def take(self, domain: str, arena: object) -> Prefix:
        """The content that an arena finds in its domain's ring; from now on nothing lies there."""
        prefix = self._prefixes.pop(domain, None)
        return prefix if prefix is not None and prefix.arena == arena else Prefix(arena, 0, 0)

    def reaches(self, domain: str, arena: object) -> int:
        """How many extents of this arena lie in its domain's ring."""
        prefix = self._prefixes.get(domain)
        return prefix.extents if prefix is not None and prefix.arena == arena else 0

    def overwritten(self, domain: str, *, by: object = None) -> None:
        """The ring is used by another arena than the one that has extents there, or in between."""
        prefix = self._prefixes.get(domain)
        if prefix is not None and prefix.arena != by:
            del self._prefixes[domain]

    def arena_removed(self, arena: object) -> None:
        """The arena is no more."""
        for domain in [name for name, prefix in self._prefixes.items() if prefix.arena == arena]:
            del self._prefixes[domain]
