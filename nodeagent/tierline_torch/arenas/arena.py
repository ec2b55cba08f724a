"""Moves a model's weights into an arena of the agent.

Loading assembles the arena's bytes extent by extent and hands them to the agent, several at once:
while the agent takes the digest of some, the next is assembled. After the seal the `data` of the
weights' tensors become views of the arena, with the shapes, strides and dtypes that they had.
Every weight gets a storage of its own over the arena's memory, as other code expects of
parameters that are not tied (safetensors refuses to save tensors that share one).

The views keep the arena alive: when all are gone, `retired` tells its owner.

Other threads of the program may write weights and exchange them meanwhile. What they wrote to the
old memory while that was loaded would be lost: so marks of the content are taken before the load
and compared after the move, and a weight that was written goes back to where it was.

Invariant: a tensor views the arena only if its weight's bytes there are those of its old memory.
Blind: a write of another thread that began before the move and ends after the look at its weight;
on a GPU, writes that PyTorch does not count, as through `.data`.

Nothing here reads the arena. What reads it outside a job is served by the library: on `cpu` by page
faults, on `cuda` as a job of its own.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from tierline_client import Client
from tierline_torch.arenas.contents import Contents
from tierline_torch.arenas.origins import NO_MAPPINGS, Origin, origin_of
from tierline_torch.arenas.resizing import hold
from tierline_torch.arenas.windows import window
from tierline_torch.tensors.aliases import uses
from tierline_torch.tensors.apart import copy_bytes
from tierline_torch.tensors.weights import Weight

_STORED_AT_ONCE = 3
"""One more than the agent has in flight, so that its next one is there. Each is an extent of host
memory."""

SEEN_SINCE = "others see the memory of weights since they were learned"
WRITTEN_SINCE = "weights were written while they were loaded"

_moves = 0


def moves() -> int:
    """How often weights of this process were moved: code that keeps addresses looks at it."""
    return _moves


def _count_move() -> None:
    global _moves  # noqa: PLW0603  # of the whole process
    _moves += 1


class Arena:
    """Arena `number` of a client, holding `contents`."""

    def __init__(
        self, client: Client, number: int, contents: Contents, extent_bytes: int, kind: str
    ) -> None:
        self.number = number
        self.contents = contents
        self._client = client
        self._extent_bytes = extent_bytes
        self._kind = kind
        self._marks = [_mark(weight) for weight, _ in contents.placed]
        self.base = 0
        self.origins: list[Origin] = []
        """Of the weights that moved."""
        self.vacated: list[tuple[int, int]] = []
        """On a GPU: the addresses and bytes of these before."""

    def load(self) -> None:
        """Reserve, store every extent, seal. Raises ClientError."""
        spans = self.contents.spans(self._extent_bytes)
        self.base = self._client.reserve(
            self.number,
            self.contents.size_bytes,
            self.contents.pinned_bytes,
            max((last - first + 1 for first, last in spans), default=0),
        )
        if self._kind == "cuda":
            placed = self.contents.placed
            self._client.weights(self.number, [(at, one.size_bytes) for one, at in placed])
        self._store()
        self._client.seal(self.number, spans)

    def _store(self) -> None:
        """Store every extent; none is under way any more when this returns or raises."""
        under_way: deque[Future[None]] = deque()
        pieces = self.contents.pieces(self._extent_bytes, _STORED_AT_ONCE + 1)
        with ThreadPoolExecutor(_STORED_AT_ONCE, "tierline-load") as threads:
            for extent, piece in pieces:
                under_way.append(threads.submit(self._client.store, self.number, extent, piece))
                if len(under_way) == _STORED_AT_ONCE:
                    under_way.popleft().result()
            for store in under_way:
                store.result()

    def move(self, retired: Callable[[int], None]) -> dict[Weight, str]:
        """Let the weights' tensors view the arena; but not those that it returns, and why.

        Since they were chosen another thread of the program has made a view, say. They view what
        they viewed before.
        """
        _count_move()
        with torch.inference_mode(False), torch.no_grad():
            own = window(self._kind, self.base, self.contents.size_bytes)
            weakref.finalize(own.memory, retired, self.number).atexit = False
            moved = [
                _move(weight, own.storage(offset, weight.size_bytes))
                for weight, offset in self.contents.placed
            ]
            stays = self._changed()
            staying = {weight.storage._cdata for weight in stays}
            gone = []
            for one, (_, offset), mark in zip(
                moved, self.contents.placed, self._marks, strict=True
            ):
                if one.weight.storage._cdata in staying:
                    one.undo(mark)
                elif one.exchanged and _is_on_host(one.weight):
                    gone.append((one, offset, mark))
                elif one.exchanged:
                    storage = one.weight.storage
                    self.vacated.append((storage.data_ptr(), storage.nbytes()))
            for one, mark in self._give_up(gone):
                one.undo(mark)
                stays[one.weight] = NO_MAPPINGS
        return stays

    def _give_up(self, gone: list[tuple[_Moved, int, object]]) -> list[tuple[_Moved, object]]:
        """Give the old memory of these up; returns those of which that is not possible."""
        if not gone:
            return []
        places = [
            (one.weight.storage.data_ptr() + one.weight.start, one.weight.size_bytes, offset)
            for one, offset, _ in gone
        ]
        closed = self._client.origins(self.number, places)
        self.origins = [origin_of(one.weight, one.storage) for one, _, _ in gone[:closed]]
        for origin in self.origins:
            origin.keep()
        return [(one, mark) for one, _, mark in gone[closed:]]

    def _changed(self) -> dict[Weight, str]:
        """Weights that cannot stay in the arena, with the reason."""
        changed: dict[Weight, str] = {}
        for (weight, _), mark in zip(self.contents.placed, self._marks, strict=True):
            if uses(weight.storage) > weight.uses:
                changed[weight] = SEEN_SINCE
            elif _mark(weight) != mark:
                changed[weight] = WRITTEN_SINCE
        return changed


class _Moved(NamedTuple):
    """A weight whose tensors view the arena."""

    weight: Weight
    storage: torch.UntypedStorage
    """Over the arena."""
    exchanged: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    """Tensors, what they viewed before, and what they view now."""

    def undo(self, mark: object) -> None:
        """Let them view what they viewed before; `mark` is that of the weight as it was loaded.

        What the program wrote since then comes along.
        """
        for tensor, before, view in self.exchanged:
            _exchange(tensor, view, before)
        weight = self.weight
        here = Weight(weight.name, self.storage, 0, weight.size_bytes)
        if self.exchanged and _is_on_host(weight) and _mark(here) != mark:
            copy_bytes(weight.content(), here.content())


def _move(weight: Weight, storage: torch.UntypedStorage) -> _Moved:
    """Let a weight's tensors view this storage.

    But not those that another thread has given other memory since they were chosen.
    """
    hold(storage)
    moved = _Moved(weight, storage, [])
    for tensor in weight.tensors:
        with _as_made(tensor):
            before = tensor.data
            if before.untyped_storage()._cdata != weight.storage._cdata:
                continue
            view = _view(storage, weight, before)
        if _exchange(tensor, before, view):
            moved.exchanged.append((tensor, before, view))
    return moved


def _exchange(tensor: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Let a tensor of a weight view what `after` does, if it views what `before` does."""
    with _as_made(tensor):
        found = tensor.data
        tensor.data = after  # the next step: Python lets no other thread run in between
        if _geometry(found) == _geometry(before):
            return True
        tensor.data = found
        return False


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage()
    return storage._cdata, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _is_on_host(weight: Weight) -> bool:
    return weight.storage.device.type == "cpu"


def _mark(weight: Weight) -> object:
    """Another one when the weight was written. Reads it at some GB/s, on a GPU not at all."""
    if weight.storage.nbytes() < weight.end:
        return None  # the program has freed it
    if not _is_on_host(weight):
        return [0 if one.is_inference() else one._version for one in weight.tensors]
    begin = weight.storage.data_ptr() + weight.start
    return zlib.crc32((ctypes.c_char * weight.size_bytes).from_address(begin))


def _as_made(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """A tensor made in inference mode keeps no versions, and its data must not."""
    return torch.inference_mode(tensor.is_inference())


def _view(storage: torch.UntypedStorage, weight: Weight, data: torch.Tensor) -> torch.Tensor:
    """A view like `data`, over the storage that takes its weight's place."""
    offset = data.storage_offset() - weight.start // data.element_size()
    view = torch.empty(0, dtype=data.dtype, device=storage.device)
    return view.set_(storage, offset, data.size(), data.stride())


def store_again(
    client: Client,
    number: int,
    base: int,
    size_bytes: int,
    extent_bytes: int,
    extents: Iterable[int],
) -> None:
    """Store these extents of an arena on a GPU as they are there now. Raises ClientError."""
    there = window("cuda", base, size_bytes)
    for extent in extents:
        begin = extent * extent_bytes
        count = min(extent_bytes, size_bytes - begin)
        with torch.inference_mode(False):
            part = torch.empty(0, dtype=torch.uint8, device="cuda")
            part.set_(there.storage(begin, count))
            here = part.cpu()
        bytes_here = (ctypes.c_char * count).from_address(here.data_ptr())
        client.store(number, extent, memoryview(bytes_here))
