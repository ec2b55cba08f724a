"""Moves a model's weights into an arena of the agent, and back.

Loading assembles the arena's bytes extent by extent and hands them to the agent, several at once:
while the agent takes the digest of some, the next is assembled. After the seal the parameters'
`data` become views of the arena, with the shapes, strides and dtypes that they had.
Every weight gets a storage of its own over the arena's memory, as other code expects of
parameters that are not tied (safetensors refuses to save tensors that share one).

The views and this object keep the arena alive: when all are gone, `retired` tells its owner.

Nothing here reads the arena but `pinned_bytes_match`. What reads it outside a job is served by the
library: on `cpu` by page faults, on `cuda` as a job of its own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tierline_client import Client
from tierline_torch.contents import Contents
from tierline_torch.views import DeviceWindow, HostWindow, window
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
        self._base = 0
        self._window: HostWindow | DeviceWindow | None = None
        self._originals: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    def load(self) -> None:
        """Reserve, store every extent, seal. Raises ClientError."""
        spans = self.contents.spans(self._extent_bytes)
        self._base = self._client.reserve(
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

    def move(self, retired: Callable[[int], None]) -> None:
        """Let the parameters view the arena; what they viewed is kept until `forget_originals`."""
        _count_move()
        with torch.inference_mode(False), torch.no_grad():
            own = window(self._kind, self._base, self.contents.size_bytes)
            weakref.finalize(own.memory, retired, self.number).atexit = False
            self._window = own
            for weight, offset in self.contents.placed:
                storage = own.storage(offset, weight.size_bytes)
                for parameter in weight.parameters:
                    # A parameter made in inference mode keeps no versions, and its data must not.
                    with torch.inference_mode(parameter.is_inference()):
                        self._originals.append((parameter, parameter.data))
                        parameter.data = _view(storage, weight, parameter)

    def pinned_bytes_match(self) -> bool:
        """Whether the pinned part of the moved arena reads as the weights it was made from.

        Their gates' job checks the other weights; nothing gates these. Called inside a job.
        """
        if self._window is None:
            raise RuntimeError("cannot compare an arena that nothing was moved to")
        for weight, offset in self.contents.placed:
            if offset >= self.contents.pinned_bytes:
                break
            with torch.inference_mode(False):
                there = torch.empty(0, dtype=torch.uint8, device=weight.storage.device)
                there.set_(self._window.storage(offset, weight.size_bytes))
            if not torch.equal(there, weight.content()):
                return False
        return True

    def restore(self) -> None:
        """Give the parameters back what they viewed before `move`."""
        _count_move()
        for parameter, original in self._originals:
            with torch.inference_mode(parameter.is_inference()), torch.no_grad():
                parameter.data = original
        self._originals.clear()

    def forget_originals(self) -> None:
        """Let the memory go that the parameters viewed before `move`."""
        self._originals.clear()


def _view(
    storage: torch.UntypedStorage, weight: Weight, parameter: torch.nn.Parameter
) -> torch.Tensor:
    item = parameter.element_size()
    offset = parameter.storage_offset() - weight.start // item
    view = torch.empty(0, dtype=parameter.dtype, device=storage.device)
    return view.set_(storage, offset, parameter.size(), parameter.stride())
