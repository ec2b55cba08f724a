"""The exact restart penalty: the cost to a streamed job of one preemption that takes its ring.

Theorem (P5, in a form that needs no argument about stalls). A job is preempted before it starts a
layer l, at the gate or while it waits for data; it then goes on from l with an empty ring. Let
T_r be the job's time from such a restart at layer r to its end, undisturbed, and S_r(l) the moment
in it at which l starts (the whole job is the restart at its first layer). Its time on the device
with restarts at l_1 <= l_2 <= … <= l_m is at most

    S_first(l_1) + S_{l_1}(l_2) + … + T_{l_m},

because each stretch ends no later than the undisturbed one starts that layer (the recursion is
built of maxima and sums, so earlier data and shorter layers cannot delay it). That telescopes to
T_first + sum over k of [ T_{l_k} - (T_{l_{k-1}} - S_{l_{k-1}}(l_k)) ]. So with

    penalty = max over r <= l of  T_l - (T_r - S_r(l))

a job preempted m times takes no longer than T_first + m * penalty, and one preemption of the worst
kind does cost that much. On one link the maximum is found at r = first (docs/design/theory.md, P5);
over several links a restart can get ahead of the undisturbed job on one of them, hence every r.

Layers may take their time in other shares than planned: with the layer times by which the job's
own bound was found (`Pipeline.layers_s`) both sums grow by the same, since no layer runs twice.

All restarts are computed at once: the recursion of pipeline.py with a vector in place of each
number, one entry per restart. Every restart may find a link busy (P3), as every dispatch may.

An arena is a job root of its own with a ring of its own time, so the penalty of a task is the worst
of its arenas'. A job without a streamed extent has none. Activations stay parked in fast memory:
nothing is charged for them here, the planner counts their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from tierline_operator.planning.jobs.pipeline import Pipeline, RingTooSmall

Floats = npt.NDArray[np.float64]


def restart_penalty_s(pipeline: Pipeline, resident: Set[int], ring_extents: int) -> float:
    """Seconds that one preemption may add to a job. Raises RingTooSmall."""
    layout, layers_s = pipeline.layout, pipeline.layers_s(resident, ring_extents)
    held = resident | layout.pinned_extents
    worst = 0.0
    for arena in range(layout.arena_count):
        layers = [layer for layer, owner in enumerate(layout.layer_arena) if owner == arena]
        streamed = [
            extent
            for extent in layout.extents_of_arena(arena)
            if extent not in held and layout.last_layer[extent] >= 0
        ]
        if streamed:
            spans = range(layers[0], layers[-1] + 1)
            worst = max(
                worst, _of_arena(pipeline, layers_s, spans, streamed, resident, ring_extents)
            )
    return worst


def _of_arena(
    pipeline: Pipeline,
    layers_s: Sequence[float],
    layers: range,
    streamed: list[int],
    resident: Set[int],
    ring_extents: int,
) -> float:
    layout, base, count = pipeline.layout, layers.start, len(layers)
    readers = [layout.last_layer[extent] - base for extent in streamed]
    # Axis of every vector: the layer at which the job was started again.
    clock = np.full((pipeline.link_count, count), pipeline.start_delay_s)
    ready, end = np.zeros(count), np.zeros(count)
    starts, ends = np.zeros((count, count)), np.zeros((count, count))
    at = 0
    for layer in range(count):
        while at < len(streamed) and streamed[at] <= layout.last_extent[base + layer]:
            extent, reads = streamed[at], readers[at] + 1
            # Copied by every restart up to its last reader; those after this layer copy it first.
            link = clock[pipeline.link_of_extent[extent], :reads]
            if at >= ring_extents:
                freed = readers[at - ring_extents] if ring_extents else layer
                if freed >= layer:
                    span = pipeline.span(base + layer, resident)
                    raise RingTooSmall(base + layer, span, ring_extents)
                # Restarts after that reader never copied the extent that lay in this slot.
                link[: freed + 1] = np.maximum(link[: freed + 1], ends[freed, : freed + 1])
            link += pipeline.copy_s[extent]
            ready[:reads] = np.maximum(ready[:reads], link + pipeline.late_s[extent])
            at += 1
        started = slice(0, layer + 1)
        starts[layer, started] = np.maximum(end[started], ready[started])
        end[started] = starts[layer, started] + layers_s[base + layer]
        ends[layer, started] = end[started]
    penalties: Floats = end[:, None] - end[None, :] + starts
    return float(np.max(np.tril(penalties)))
