"""Moves a model's weights into an arena of the agent, and back.

Loading assembles the arena's bytes extent by extent and hands them to the agent; after the seal
the parameters' `data` become views of the arena, with the shapes, strides and dtypes that they had.
Every weight gets a storage of its own over the arena's memory, as other code expects of
parameters that are not tied (safetensors refuses to save tensors that share one).

The views and this object keep the arena alive: when all are gone, `retired` tells its owner.

Nothing here reads the arena; what reads it outside a job is served by the library's page faults.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import torch

from tierline_client import Client
from tierline_torch.contents import Contents
from tierline_torch.weights import Weight


class Arena:
    """Arena `number` of a client, holding `contents`."""

    def __init__(self, client: Client, number: int, contents: Contents, extent_bytes: int) -> None:
        self.number = number
        self.contents = contents
        self._client = client
        self._extent_bytes = extent_bytes
        self._base = 0
        self._window: ctypes.Array[ctypes.c_char] | None = None
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
        for extent, piece in self.contents.pieces(self._extent_bytes):
            self._client.store(self.number, extent, piece.data)
        self._client.seal(self.number, spans)

    def move(self, retired: Callable[[int], None]) -> None:
        """Let the parameters view the arena; what they viewed is kept until `forget_originals`."""
        with torch.inference_mode(False), torch.no_grad():
            window = (ctypes.c_char * self.contents.size_bytes).from_address(self._base)
            weakref.finalize(window, retired, self.number).atexit = False
            self._window = window
            for weight, offset in self.contents.placed:
                storage = torch.frombuffer(
                    window, dtype=torch.uint8, offset=offset, count=weight.size_bytes
                ).untyped_storage()
                for parameter in weight.parameters:
                    # A parameter made in inference mode keeps no versions, and its data must not.
                    with torch.inference_mode(parameter.is_inference()):
                        self._originals.append((parameter, parameter.data))
                        parameter.data = _view(storage, weight, parameter)

    def pinned_bytes_match(self) -> bool:
        """Whether the pinned part of the arena reads as the weights it was made from.

        Their gates' job checks the other weights; nothing gates these. They are always readable.
        """
        for weight, offset in self.contents.placed:
            if offset >= self.contents.pinned_bytes:
                break
            place = (ctypes.c_char * weight.size_bytes).from_address(self._base + offset)
            there = torch.frombuffer(place, dtype=torch.uint8)
            if not torch.equal(there, weight.content()):
                return False
        return True

    def restore(self) -> None:
        """Give the parameters back what they viewed before `move`."""
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
    view = torch.empty(0, dtype=parameter.dtype)
    return view.set_(storage, offset, parameter.size(), parameter.stride())
