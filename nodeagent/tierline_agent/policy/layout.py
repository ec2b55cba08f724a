"""How the extents of an arena lie in fast memory: residents apart, the rest by ring.

Pure arithmetic over what a plan and an arena say, shared by reserving, sealing and re-attaching.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tierline_agent.errors import QuotaExceeded
from tierline_agent.policy.transfers import slot_of
from tierline_agent.transport.protocol import RESIDENT_BIT, LayerSpan


def extents_for(weight_bytes: int, extent_bytes: int) -> int:
    """How many extents so many bytes take."""
    return -(-weight_bytes // extent_bytes)


def place(extent_count: int, resident: Collection[int], ring_slots: int) -> tuple[int, ...]:
    """The placement words of an arena: RESIDENT_BIT + i for the i-th resident, else a ring slot.

    `ring_slots` must be positive unless every extent is resident.
    """
    words = []
    residents = streamed = 0
    for extent in range(extent_count):
        if extent in resident:
            words.append(RESIDENT_BIT + residents)
            residents += 1
        else:
            words.append(slot_of(streamed, ring_slots))
            streamed += 1
    return tuple(words)


def residents_of(placement: Sequence[int]) -> tuple[int, ...]:
    """The extents that are resident."""
    return tuple(extent for extent, word in enumerate(placement) if word & RESIDENT_BIT)


def streamed_of(placement: Sequence[int]) -> tuple[int, ...]:
    """The extents that stream, in order."""
    return tuple(extent for extent, word in enumerate(placement) if not word & RESIDENT_BIT)


def check_pinned(pinned_bytes: int, extent_bytes: int, resident: Collection[int]) -> None:
    """Check that the extents with pinned bytes, the first ones, are resident.

    Raises:
        QuotaExceeded: one is not.
    """
    for extent in range(extents_for(pinned_bytes, extent_bytes)):
        if extent not in resident:
            raise QuotaExceeded(
                f"extent {extent} holds weights that must stay resident, and the plan streams it; "
                "profile the task again"
            )


def check_span_fits(
    span: int, extent_count: int, resident: Collection[int], ring_slots: int
) -> None:
    """Check that a layer of `span` extents can be in the ring somewhere in the arena.

    Where that layer lies is known only when the arena is sealed; this finds what can never work.

    Raises:
        QuotaExceeded: every place such a layer could have needs more slots than the ring has.
    """
    streamed = [extent not in resident for extent in range(extent_count)]
    window = sum(streamed[:span])
    least = window
    for extent in range(span, extent_count):
        window += streamed[extent] - streamed[extent - span]
        least = min(least, window)
    if least > ring_slots:
        raise QuotaExceeded(
            f"the largest layer needs {least} ring slots at once and the plan has {ring_slots}; "
            "profile the task again"
        )


def check_layers(layers: Sequence[LayerSpan], placement: Sequence[int], ring_slots: int) -> None:
    """Check the layers of an arena that is being sealed.

    Raises:
        QuotaExceeded: a layer lies outside the arena, or streams more extents than the ring has.
    """
    before = [0]
    for word in placement:
        before.append(before[-1] + (not word & RESIDENT_BIT))
    for number, layer in enumerate(layers):
        first, last = layer.first_extent, layer.last_extent
        if last < first:
            continue
        if last >= len(placement):
            raise QuotaExceeded(
                f"layer {number} reads extent {last} and the arena has {len(placement)}"
            )
        needed = before[last + 1] - before[first]
        if needed > ring_slots:
            raise QuotaExceeded(
                f"layer {number} streams {needed} extents at once and the ring has {ring_slots}; "
                "profile the task again"
            )
