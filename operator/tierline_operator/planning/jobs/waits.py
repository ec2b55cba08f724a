"""How soon a job that cannot be preempted while it waits for data stands at a gate.

A GPU's stream waits for what a layer reads, stands at the layer's gate if it was asked to, and runs
the layer. So a job asked while it waits stands there after that wait. One that has passed the gate
of a layer l, or goes on from it with an empty ring, waits for what l reads, runs l, and waits for
what the next layer reads before it stands there.

Theorem. It stands no later than a job that goes on at l with an empty ring, at the worst l: after

    y(l)          after the start delay of P3 and the copies of what l reads,
    e = y(l) + L_l        with the longest time of that layer in any job
    y(l+1)        after the copies of what l+1 reads besides; those without a slot begin at e,
    max(e, y(l+1))

as in the recursion of pipeline.py. Proof: that is built of maxima and sums, so the more of these
extents are in place or under way when the job goes on, or passes the gate, the sooner it stands. No
more slots are taken than by them: what only earlier layers read has been given back, and the link
copies in the order of the stream. The begin of a job is its going on at the first layer.

Assumptions: those of pipeline.py (P1, P3).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tierline_operator.planning.jobs.pipeline import Pipeline


def yields_within_s(pipeline: Pipeline, resident: Set[int], ring_extents: int) -> float:
    """Longest time, seconds, from the begin of a job, or from a gate, to where it next stands.

    The ring must have a slot for each streamed extent of a layer.
    """
    layout = pipeline.layout
    held = resident | layout.pinned_extents
    ends = zip(layout.first_extent, layout.last_extent, strict=True)
    reads = [[e for e in range(first, last + 1) if e not in held] for first, last in ends]
    longest_s = 0.0
    for layer, compute_s in enumerate(pipeline.longest_s if reads else ()):
        follows = layer + 1 < len(reads)
        own, more = reads[layer], reads[layer + 1] if follows else []
        clock = [pipeline.start_delay_s] * pipeline.link_count
        end_s = _copy(pipeline, own, clock) + compute_s
        if follows and pipeline.arena_starts[layer + 1]:  # with a stream and a ring of its own
            clock = [end_s + pipeline.start_delay_s] * pipeline.link_count
            ready_s = _copy(pipeline, more, clock)
        else:
            more = [extent for extent in more if extent not in own]
            free = ring_extents - len(own)
            ready_s = _copy(pipeline, more[:free], clock)
            clock = [max(copied_s, end_s) for copied_s in clock]
            ready_s = max(ready_s, _copy(pipeline, more[free:], clock))
        longest_s = max(longest_s, end_s, ready_s)
    return longest_s


def _copy(pipeline: Pipeline, extents: Sequence[int], clock: list[float]) -> float:
    """Copy them after what the links have done until `clock`; returns when all are in place."""
    ready_s = 0.0
    for extent in extents:
        link = pipeline.link_of_extent[extent]
        clock[link] += pipeline.copy_s[extent]
        ready_s = max(ready_s, clock[link] + pipeline.late_s[extent])
    return ready_s
