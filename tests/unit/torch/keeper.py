"""An agent as an arena sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tierline_client import ClientError, ErrorCode

EXTENT_BYTES = 4096
TIMEOUT_S = 120.0


class Keeper:
    """Keeps what is stored, or refuses an extent.

    No store returns before as many are under way as an arena can have, or the last one came.
    """

    def __init__(self, extents: int, at_once: int, refused: int | None = None) -> None:
        self.stored: dict[int, bytes] = {}
        self.under_way = 0
        self.most = 0
        self.sealed = False
        self._extents = extents
        self._at_once = at_once
        self._refused = refused
        self._begun = 0
        self._changed = threading.Condition()
        self.memory = torch.zeros(extents * EXTENT_BYTES, dtype=torch.uint8)
        """The arena's."""
        self.mappings = 1 << 16
        """Weights of which it can give the old memory up."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What another thread of the program does before the arena is sealed."""

    def reserve(self, *_: Any) -> int:
        return self.memory.data_ptr()

    def store(self, _arena: int, extent: int, data: memoryview) -> None:
        with self._changed:
            self._begun += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self._changed.notify_all()
            enough = self._changed.wait_for(
                lambda: self.most == self._at_once or self._begun == self._extents, TIMEOUT_S
            )
            assert enough
            self.under_way -= 1
            if extent == self._refused:
                raise ClientError(ErrorCode.RETRY, "the connection broke")
            self.stored[extent] = bytes(data)

    def seal(self, *_: Any) -> None:
        self.meanwhile()
        for extent, data in self.stored.items():
            begin = extent * EXTENT_BYTES
            self.memory[begin : begin + len(data)] = torch.frombuffer(
                bytearray(data), dtype=torch.uint8
            )
        self.sealed = True

    def origins(self, _arena: int, weights: Sequence[tuple[int, int, int]]) -> int:
        """Give none up, but say so."""
        return min(len(weights), self.mappings)
