"""The layout of a weight arena: pinned weights first, then layers in the order of their use.

The same contents are reported by an observed run and stored by a managed one, so that the plan
made from the first fits the second. Offsets do not depend on the extent size; `layout.lay_out`
cuts the same bytes into extents.

It moves nothing; `arena` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tierline_api.layout import ArenaLayout, LayerShape, lay_out
from tierline_torch.arenas.selection import Layer, Selection
from tierline_torch.tensors.apart import clear_bytes, copy_bytes
from tierline_torch.tensors.weights import Weight

if TYPE_CHECKING:
    from hashlib import _Hash

_DIGEST_STEP_BYTES = 4 << 20
_NAME_CHARACTERS = 253
"""The API takes no longer ones."""
_END_CHARACTERS = 110


@dataclass(frozen=True)
class Entry:
    """A line of the profile: a layer, or the pinned weights of one reason."""

    name: str
    size_bytes: int
    pinned: bool


@dataclass(frozen=True)
class Contents:
    """One arena's weights with their offsets in bytes from its base."""

    entries: tuple[Entry, ...]
    weights: tuple[Weight, ...]
    """As they were selected from, those that are not moved among them."""
    selection: Selection
    placed: tuple[tuple[Weight, int], ...]
    launches: tuple[tuple[int, int], ...]
    """First and end byte of what each gated launch reads; none where modules are gated."""
    gates: Mapping[int, int]
    """Module id -> layer, counted among the entries that are not pinned; for layers of modules."""
    size_bytes: int
    pinned_bytes: int

    @property
    def streams(self) -> bool:
        """Whether any weight may be streamed."""
        return self.pinned_bytes < self.size_bytes

    @property
    def layers(self) -> list[list[int]]:
        """The weights of each entry that is not pinned, as indexes into `placed`."""
        layers: list[list[int]] = []
        end, following = 0, 0
        for entry in self.entries:
            end += entry.size_bytes
            first = following
            while following < len(self.placed) and self.placed[following][1] < end:
                following += 1
            if not entry.pinned:
                layers.append(list(range(first, following)))
        return layers

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The entries as the planner and the agent take them (arena 0)."""
        return tuple(LayerShape(entry.size_bytes, entry.pinned) for entry in self.entries)

    def layout(self, extent_bytes: int) -> ArenaLayout:
        """This arena alone, in extents."""
        return lay_out(self.shapes, extent_bytes)

    def spans(self, extent_bytes: int) -> list[tuple[int, int]]:
        """First and last extent that each gate needs, in order."""
        if self.launches:
            return [
                (first // extent_bytes, (end - 1) // extent_bytes) for first, end in self.launches
            ]
        layout = self.layout(extent_bytes)
        return list(zip(layout.first_extent, layout.last_extent, strict=True))

    def pieces(self, piece_bytes: int, alive: int = 1) -> Iterator[tuple[int, memoryview]]:
        """The arena's bytes in pieces of `piece_bytes` (the last may be short), with their index.

        `alive` buffers take turns: each is filled again when so many pieces have come after it.
        """
        size_bytes, count = min(piece_bytes, self.size_bytes), -(-self.size_bytes // piece_bytes)
        buffers = [bytearray(size_bytes) for _ in range(min(alive, count))]
        following = 0
        for index in range(count):
            base = index * piece_bytes
            end = min(base + piece_bytes, self.size_bytes)
            buffer = buffers[index % alive]
            target = torch.frombuffer(buffer, dtype=torch.uint8)
            filled = base
            while following < len(self.placed):
                weight, offset = self.placed[following]
                stop = offset + weight.size_bytes
                if offset >= end:
                    break
                low, high = max(offset, base), min(stop, end)
                content = weight.content()[low - offset : high - offset]
                clear_bytes(target[filled - base : low - base])
                copy_bytes(target[low - base : high - base], content)
                filled = high
                if stop > end:
                    break
                following += 1
            clear_bytes(target[filled - base : end - base])
            yield index, memoryview(buffer)[: end - base]

    def digest_into(self, hasher: _Hash) -> None:
        """Add the arena's bytes, padding included, to a digest."""
        for _, piece in self.pieces(_DIGEST_STEP_BYTES):
            hasher.update(piece)


def arrange(weights: Sequence[Weight], selection: Selection, names: Mapping[int, str]) -> Contents:
    """Give the selected weights their places; `names` are the modules' (by id)."""
    entries: list[Entry] = []
    placed: list[tuple[Weight, int]] = []
    begins: dict[int, int] = {}
    offset = 0

    def place(name: str, chosen: Sequence[int], *, pinned: bool) -> None:
        nonlocal offset
        begin = offset
        for index in chosen:
            begins[index] = offset
            placed.append((weights[index], offset))
            offset += weights[index].slot_bytes
        entries.append(Entry(name, offset - begin, pinned))

    for group in selection.pinned:
        place(f"pinned: {group.reason}", group.weights, pinned=True)
    pinned_bytes = offset
    for layer in selection.layers:
        place(_name(layer, weights, names), layer.weights, pinned=False)
    return Contents(
        entries=tuple(entries),
        weights=tuple(weights),
        selection=selection,
        placed=tuple(placed),
        launches=tuple(
            (
                min(begins[index] for index in launch),
                max(begins[index] + weights[index].size_bytes for index in launch),
            )
            for launch in selection.launches
        ),
        gates={
            layer.module: index
            for index, layer in enumerate(selection.layers)
            if layer.module is not None
        },
        size_bytes=offset,
        pinned_bytes=pinned_bytes,
    )


def _name(layer: Layer, weights: Sequence[Weight], names: Mapping[int, str]) -> str:
    if layer.module is not None and layer.module in names:
        return shown(names[layer.module])
    first = weights[layer.weights[0]].name
    return shown(first.rpartition(".")[0] or first)


def shown(name: str) -> str:
    """A name as a profile has it: of one that is too long, its ends and how long it is."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[:_END_CHARACTERS]}...{len(name)}...{name[-_END_CHARACTERS:]}"
