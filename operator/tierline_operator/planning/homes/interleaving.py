"""In which order the extents of several tiers follow each other in a task's stream.

Links run at the same time, each at its own pace, and a job reads its stream in order. So the i-th
of the n extents that a tier has of the task is due, and lies, at the share i / n of the stream:
then all links are in use from the first layer to the last, and no stretch of layers waits for one
tier alone. Of extents that would lie in the same place the one of the faster tier comes first,
since nothing has been read ahead where a job begins.

A plan has at most MOST_RUNS runs of extents with one home. Where there would be more, tiers take
turns by so many extents at a time as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from tierline_operator.planning.wishes import MOST_RUNS


def interleave(
    extents: int, fixed: Mapping[int, str], shares: Sequence[tuple[str, int]]
) -> tuple[str, ...]:
    """The home of each extent: those that are `fixed`, and so many in each tier of the others.

    `shares` are in the order of the tiers, the fastest first; they add up to the others.
    """
    others = [extent for extent in range(extents) if extent not in fixed]
    at_once = 1
    while True:
        homes = dict(fixed)
        homes.update(zip(others, _order(shares, at_once), strict=True))
        lie = tuple(homes[extent] for extent in range(extents))
        if at_once >= max(1, len(others)) or sum(1 for _ in groupby(lie)) <= MOST_RUNS:
            return lie
        at_once *= 2


def _order(shares: Sequence[tuple[str, int]], at_once: int) -> list[str]:
    names = [name for name, _ in shares]
    numbers = np.repeat(np.arange(len(shares)), [count for _, count in shares])
    due = [
        np.minimum((np.arange(count) // at_once + 1) * at_once, count) / max(1, count)
        for _, count in shares
    ]
    order = np.argsort(np.concatenate([np.empty(0), *due]), kind="stable")
    return [names[number] for number in numbers[order]]
