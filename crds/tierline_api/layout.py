"""How the layers of a task lie in extents.

The plugin lays tensors out with this, the agent numbers extents by it, and the planner proves
deadlines over it: one function, so that the three cannot disagree.

What it does not do: it knows nothing of residency, rings or tiers; those are the plan's.

The rule. A task has one or more arenas (one per job root). Inside an arena the *pinned* bytes come
first (weights that must stay resident), then the other layers in the order in which a job uses
them, without gaps; a layer's bytes already include the 64-byte alignment of its tensors. Every
arena starts at an extent boundary, and the extents of a task are numbered over its arenas,
concatenated in arena order.

Invariant: inside an arena `last_layer` never decreases over the extents that are not pinned, so
the extents that a job has done with are always a prefix of those it streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

MAX_ARENAS = 16


class LayoutError(ValueError):
    """The layers given cannot be laid out; the message says which and why."""


@dataclass(frozen=True)
class LayerShape:
    """One entry of a profile: `bytes` of weights, read in `arena`.

    A pinned entry has bytes that must stay resident and no gate of its own.
    """

    bytes: int
    pinned: bool = False
    arena: int = 0


@dataclass(frozen=True)
class ArenaLayout:
    """The extents of a task. "Layer" below is the index among the layers that are not pinned.

    Extents are numbered over all arenas; a layer of 0 bytes has `last_extent < first_extent`.
    """

    extent_bytes: int
    """Size of a full extent, bytes."""
    extent_sizes: tuple[int, ...]
    """Bytes in use of each extent; only the last extent of an arena may be short."""
    arena_first_extent: tuple[int, ...]
    """First extent of each arena (an arena may be empty)."""
    pinned_extents: frozenset[int]
    """Extents that hold pinned bytes: always resident."""
    first_extent: tuple[int, ...]
    """First extent that each layer reads."""
    last_extent: tuple[int, ...]
    """Last extent that each layer reads, inclusive."""
    last_layer: tuple[int, ...]
    """For each extent the last layer that reads it, -1 if it holds pinned bytes only."""
    layer_arena: tuple[int, ...]
    """The arena of each layer."""
    layer_offset: tuple[int, ...]
    """Offset of each layer's first byte from the base of its arena, bytes."""
    arena_bytes: tuple[int, ...]
    """Weight bytes of each arena, pinned bytes included."""
    arena_pinned_bytes: tuple[int, ...]
    """Pinned bytes of each arena; they lie at its base."""

    @property
    def extent_count(self) -> int:
        """Extents of all arenas."""
        return len(self.extent_sizes)

    @property
    def layer_count(self) -> int:
        """Layers that are not pinned."""
        return len(self.first_extent)

    @property
    def arena_count(self) -> int:
        """Arenas, empty ones included."""
        return len(self.arena_first_extent)

    @cached_property
    def weight_bytes(self) -> int:
        """Weight bytes of all arenas."""
        return sum(self.extent_sizes)

    def extents_of_arena(self, arena: int) -> range:
        """The extents of one arena, numbered over the task."""
        starts = (*self.arena_first_extent, self.extent_count)
        return range(starts[arena], starts[arena + 1])


_ANY = -1
"""In place of an arena: of whichever comes next."""


def lay_out(layers: Sequence[LayerShape], extent_bytes: int) -> ArenaLayout:
    """Place `layers` (in the order in which a job uses them) into extents of `extent_bytes`.

    Layers that are not pinned must be grouped by arena, arenas ascending; pinned entries may stand
    anywhere. Raises LayoutError for a size that is not positive, negative bytes, an arena outside
    0..15, or layers of an arena that are not consecutive.
    """
    _check(layers, extent_bytes)
    arenas = 1 + max((layer.arena for layer in layers), default=-1)
    pinned = [0] * arenas
    total = [0] * arenas
    for layer in layers:
        total[layer.arena] += layer.bytes
        if layer.pinned:
            pinned[layer.arena] += layer.bytes

    starts: list[int] = []
    sizes: list[int] = []
    pinned_extents: set[int] = set()
    for size, held in zip(total, pinned, strict=True):
        base = len(sizes)
        starts.append(base)
        full, tail = divmod(size, extent_bytes)
        sizes += [extent_bytes] * full + ([tail] if tail else [])
        pinned_extents.update(range(base, base - (-held // extent_bytes)))

    first: list[int] = []
    last: list[int] = []
    owner: list[int] = []
    offsets: list[int] = []
    last_layer = [-1] * len(sizes)
    position = list(pinned)
    for layer in layers:
        if layer.pinned:
            continue
        begin = position[layer.arena]
        position[layer.arena] = end = begin + layer.bytes
        base = starts[layer.arena]
        first.append(base + begin // extent_bytes)
        last.append(base + (end - 1) // extent_bytes if layer.bytes else first[-1] - 1)
        for extent in range(first[-1], last[-1] + 1):
            last_layer[extent] = len(owner)
        owner.append(layer.arena)
        offsets.append(begin)

    return ArenaLayout(
        extent_bytes=extent_bytes,
        extent_sizes=tuple(sizes),
        arena_first_extent=tuple(starts),
        pinned_extents=frozenset(pinned_extents),
        first_extent=tuple(first),
        last_extent=tuple(last),
        last_layer=tuple(last_layer),
        layer_arena=tuple(owner),
        layer_offset=tuple(offsets),
        arena_bytes=tuple(total),
        arena_pinned_bytes=tuple(pinned),
    )


def fold_compute(layers: Sequence[LayerShape], compute_s: Sequence[float]) -> tuple[float, ...]:
    """Compute times (seconds) per layer that is not pinned, from times per profile entry.

    The time of a pinned entry is added to the next layer of its arena that has a gate (to the last
    one if none follows): the arenas of a job may run another number of times. That can only make a
    predicted job longer: the sum then waits for the later layer's extents. Where an arena has
    pinned entries alone, its time is added to the next layer of any. With pinned entries only, the
    answer is the one sum.
    """
    if len(layers) != len(compute_s):
        raise LayoutError(
            f"cannot match {len(compute_s)} compute times to {len(layers)} layers: give one each"
        )
    gated = {layer.arena for layer in layers if not layer.pinned}
    folded: list[float] = []
    carried = dict.fromkeys((*gated, _ANY), 0.0)
    last: dict[int, int] = {}
    for layer, seconds in zip(layers, compute_s, strict=True):
        if layer.pinned:
            carried[layer.arena if layer.arena in gated else _ANY] += seconds
        else:
            last[layer.arena] = last[_ANY] = len(folded)
            folded.append(carried[layer.arena] + carried[_ANY] + seconds)
            carried[layer.arena] = carried[_ANY] = 0.0
    if not folded:
        return (carried[_ANY],) if layers else ()
    for arena, seconds in carried.items():
        folded[last[arena]] += seconds
    return tuple(folded)


def _check(layers: Sequence[LayerShape], extent_bytes: int) -> None:
    if extent_bytes <= 0:
        raise LayoutError(f"cannot lay out layers in extents of {extent_bytes} bytes")
    current = 0
    for index, layer in enumerate(layers):
        if layer.bytes < 0:
            raise LayoutError(f"layer {index} has {layer.bytes} bytes: sizes cannot be negative")
        if not 0 <= layer.arena < MAX_ARENAS:
            raise LayoutError(
                f"layer {index} names arena {layer.arena}: arenas are 0..{MAX_ARENAS - 1}"
            )
        if layer.pinned:
            continue
        if layer.arena < current:
            raise LayoutError(
                f"layer {index} of arena {layer.arena} comes after layers of arena {current}: "
                "group the layers by arena, arenas ascending"
            )
        current = layer.arena
