"""Which weights can be streamed by the launches that read them, and in which order. Pure.

A run is what the launches of one job named: pairs of (launch, weight), launches in the order in
which the program made them. A weight is streamed if every run shows it, in the same order among
the others, and if the launches that read it lie close together. Everything else is pinned, with
the reason; but a weight that no launch named stays where the program made it. It is read through
memory that nobody watches, if it is: by its address, or by its distance from others that stay.

A launch may seem to name a weight that it does not read: structures have holes, and an old address
may lie in one. So only what all runs show, in one order, counts as a read. Such a name is often the
same in all runs of a process and another one in the next process, so two processes may choose
differently. But a run shows all that its launches read, so what only one process shows was not
read: an order that another process chose serves this one too, if every run here shows it, but for
names that are nobody's reads (`explains`). The gates check each launch by what it names, so an
order that is wrong in places costs waits, and never wrong bytes.

Weights that are read again while others have begun share a layer: the layer must be there whole.

Invariant: `layers`, `pinned` and `stays` hold every weight exactly once, and every weight that a
launch of `launches` names is in a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from tierline_torch.arenas.selection import (
    CHANGING,
    REPEATED,
    Layer,
    Selection,
    by_reason,
)

NOT_SEEN = "named by no launch of the first jobs"
_MOST_BETWEEN = 8
"""Other weights that may be read for the first time between the reads of one: more, and it would
occupy the ring for most of the job, so it stays resident."""

Reads = Sequence[tuple[int, int]]
"""(launch, weight index) in program order."""


def select_by_launches(count: int, runs: Sequence[Reads]) -> Selection:
    """Sort `count` weights by what `runs` (at least one) show."""
    common = list(runs[0])
    for run in runs[1:]:
        common = _in_both(common, run)
    steady = {weight for _, weight in common}
    shown = {weight for run in runs for _, weight in run}
    reasons = dict.fromkeys(shown - steady, CHANGING)
    reasons.update((weight, REPEATED) for weight in _scattered(common))
    launches = _by_launch([read for read in common if read[1] not in reasons])
    return Selection(
        layers=tuple(Layer(None, weights) for weights in _layers(launches)),
        pinned=by_reason(reasons),
        launches=launches,
        stays=by_reason(dict.fromkeys(set(range(count)) - shown, NOT_SEEN)),
    )


def explains(selection: Selection, runs: Sequence[Reads]) -> bool:
    """Whether what another process chose for the same weights serves the job of these runs.

    Invariant: then every run names each weight that is streamed, at its place in the chosen order.
    One that a run did not name there may be read through memory that nobody watches.
    """
    chosen = [(at, weight) for at, launch in enumerate(selection.launches) for weight in launch]
    streamed = {weight for layer in selection.layers for weight in layer.weights}
    return all(streamed <= {weight for _, weight in _in_both(chosen, run)} for run in runs)


def _in_both(first: Reads, second: Reads) -> list[tuple[int, int]]:
    """The reads of the first that the second shows in the same order."""
    matcher = SequenceMatcher(
        a=[weight for _, weight in first], b=[weight for _, weight in second], autojunk=False
    )
    return [
        read
        for block in matcher.get_matching_blocks()
        for read in first[block.a : block.a + block.size]
    ]


def _scattered(run: Reads) -> list[int]:
    """Weights between whose reads too many others begin."""
    begun = 0
    begun_at: dict[int, int] = {}
    scattered = []
    for _, weight in run:
        if weight not in begun_at:
            begun += 1
            begun_at[weight] = begun
        elif begun - begun_at[weight] > _MOST_BETWEEN:
            scattered.append(weight)
    return scattered


def _by_launch(reads: Reads) -> tuple[tuple[int, ...], ...]:
    launches: dict[int, dict[int, None]] = {}
    for launch, weight in reads:
        launches.setdefault(launch, {})[weight] = None
    return tuple(tuple(weights) for weights in launches.values())


def _layers(launches: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Weights in the order of their first reads, cut where no earlier one is read any more."""
    last_read = {weight: at for at, weights in enumerate(launches) for weight in weights}
    layers: list[tuple[int, ...]] = []
    layer: dict[int, None] = {}
    for at, weights in enumerate(launches):
        layer.update(dict.fromkeys(weight for weight in weights if weight not in layer))
        new = [weight for weight in layer if last_read[weight] > at]
        if not new:
            if layer:
                layers.append(tuple(layer))
            layer = {}
    return layers
