"""Which transfer a link runs next, and when a ring slot may be overwritten.

Transfers are ordered by the absolute deadline of the job that waits for them, then by arrival.
Loading and filling of resident extents have no deadline and go last. A link runs at most
`IN_FLIGHT` transfers at once, so that an urgent one never waits for more than those.

While a job streams, a transfer without a deadline begins on none of its links for its device, also
where the stream waits for its client and the link is idle: the pipeline recursion of the planner
charges what is in flight when a job is dispatched (P3 in docs/design/theory.md), once, and
has no link busy with anything else later. A load that slipped in each time that a slot is free
would cost a job one flight for each of its extents.

The ring: the j-th streamed extent of a job lies in slot j mod g; it may be copied there once the
extent that lay there before, j - g, is consumed. Invariant: no slot is written while the client
may still read it.
"""

from __future__ import annotations

IN_FLIGHT = 2
"""Extents in flight per link: one is copied while the next one's request is under way."""

BACKGROUND_NS = (1 << 63) - 1
"""The deadline of a transfer for which no job waits."""


def urgency(deadline_ns: int, arrival: int) -> tuple[int, int]:
    """Sort key of a transfer; the smallest runs first."""
    return (deadline_ns, arrival)


def consumed_needed(extent: int, ring_slots: int) -> int:
    """How many streamed extents the client must have consumed before number `extent` is copied."""
    return max(0, extent - ring_slots + 1)


def slot_of(extent: int, ring_slots: int) -> int:
    """The ring slot of the streamed extent number `extent`."""
    return extent % ring_slots
