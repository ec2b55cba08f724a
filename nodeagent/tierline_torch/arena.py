"""Moves a model's weights into an arena of the agent.

Loading assembles the arena's bytes extent by extent and hands them to the agent, several at once:
while the agent takes the digest of some, the next is assembled. After the seal the parameters'
`data` become views of the arena, with the shapes, strides and dtypes that they had.
Every weight gets a storage of its own over the arena's memory, as other code expects of
parameters that are not tied (safetensors refuses to save tensors that share one).

The views keep the arena alive: when all are gone, `retired` tells its owner.

Nothing here reads the arena. What reads it outside a job is served by the library: on `cpu` by page
faults, on `cuda` as a job of its own.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch

from tierline_client import Client
from tierline_torch.aliases import uses
from tierline_torch.contents import Contents
from tierline_torch.views import window
from tierline_torch.weights import Weight

_STORED_AT_ONCE = 3
"""One more than the agent has in flight, so that its next one is there. Each is an extent of host
memory."""

_moves = 0


def moves() -> int:
    """How often weights of this process were moved: whoever keeps addresses looks at it."""
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
        self.base = 0

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
                under_way.append(
                    threads.submit(self._client.store, self.number, extent, piece.data)
                )
                if len(under_way) == _STORED_AT_ONCE:
                    under_way.popleft().result()
            for store in under_way:
                store.result()

    def move(self, retired: Callable[[int], None]) -> list[Weight]:
        """Let the parameters view the arena; but not those of the weights that it returns.

        Something else sees their memory since they were chosen: another thread of the program has
        made a view, say. They view what they viewed before.
        """
        _count_move()
        with torch.inference_mode(False), torch.no_grad():
            own = window(self._kind, self.base, self.contents.size_bytes)
            weakref.finalize(own.memory, retired, self.number).atexit = False
            originals: dict[int, list[tuple[torch.nn.Parameter, torch.Tensor]]] = {}
            for weight, offset in self.contents.placed:
                storage = own.storage(offset, weight.size_bytes)
                for parameter in weight.parameters:
                    with _as_made(parameter):
                        pair = parameter, parameter.data
                        originals.setdefault(weight.storage._cdata, []).append(pair)
                        parameter.data = _view(storage, weight, parameter)
            stays = [
                weight for weight, _ in self.contents.placed if uses(weight.storage) > weight.uses
            ]
            for key in {weight.storage._cdata for weight in stays}:
                for parameter, data in originals[key]:
                    with _as_made(parameter):
                        parameter.data = data
        return stays


def _as_made(parameter: torch.nn.Parameter) -> AbstractContextManager[None]:
    """A parameter made in inference mode keeps no versions, and its data must not."""
    return torch.inference_mode(parameter.is_inference())


def _view(
    storage: torch.UntypedStorage, weight: Weight, parameter: torch.nn.Parameter
) -> torch.Tensor:
    item = parameter.element_size()
    offset = parameter.storage_offset() - weight.start // item
    view = torch.empty(0, dtype=parameter.dtype, device=storage.device)
    return view.set_(storage, offset, parameter.size(), parameter.stride())


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
