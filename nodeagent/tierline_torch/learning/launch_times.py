"""How long each layer takes, by when the launches end that first read its weights. Pure.

A layer is over when the last of those launches is. What runs between two layers counts for the
second; what runs before the first launch or after the last one counts for the last layer, where
no copying could hide it. What may run side by side inside a graph counts for the layer that is read
last there: each layer's time and all after it are then enough for the rest of the job, whenever
its weights come.

Invariant: no time is negative, and all of them together are the whole job's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierline_torch.learning.launch_order import Reads


def layer_times_s(
    layers: Sequence[Sequence[int]],
    reads: Reads,
    ends_s: Sequence[tuple[int, float]],
    total_s: float,
) -> list[float]:
    """Seconds of each of `layers` (at least one; weights by index), in the order of their use.

    `reads` are those of the job, `ends_s` when its launches ended, as (launch, seconds since just
    before the first of them), and `total_s` is how long the job took. A layer of which no launch
    was timed counts for the next one.
    """
    end_of = dict(ends_s)
    read_in: dict[int, int] = {}
    for launch, weight in reads:
        read_in.setdefault(weight, launch)
    times: list[float] = []
    before_s = 0.0
    for weights in layers:
        ends = [end_of.get(read_in[weight], 0.0) for weight in weights if weight in read_in]
        end_s = min(max(ends, default=0.0), total_s)
        times.append(max(end_s - before_s, 0.0))
        before_s = max(end_s, before_s)
    times[-1] += total_s - before_s
    return times
