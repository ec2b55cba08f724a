"""The pipeline recursion (P1) for a job of one arena, a layer at a time."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tierline_operator.planning.jobs.pipeline import Pipeline


def layer_times(
    pipeline: Pipeline, resident: Set[int], ring: int, restart: int = 0
) -> Iterator[tuple[float, float]]:
    """Begin and end of each layer of a job that goes on at layer `restart` at 0."""
    layout = pipeline.layout
    stream = [
        extent
        for extent in range(layout.extent_count)
        if extent not in resident and layout.last_layer[extent] >= restart
    ]
    clock = [pipeline.start_delay_s] * pipeline.link_count
    ends: dict[int, float] = {}
    end_s = ready_s = 0.0
    at = 0
    for layer in range(restart, layout.layer_count):
        while at < len(stream) and stream[at] <= layout.last_extent[layer]:
            link = pipeline.link_of_extent[stream[at]]
            if at >= ring:
                clock[link] = max(clock[link], ends[layout.last_layer[stream[at - ring]]])
            clock[link] += pipeline.copy_s[stream[at]]
            ready_s = max(ready_s, clock[link] + pipeline.late_s[stream[at]])
            at += 1
        start_s = max(end_s, ready_s)
        ends[layer] = end_s = start_s + pipeline.compute_s[layer]
        yield start_s, end_s
