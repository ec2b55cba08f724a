"""The memory that a weight on `cpu` lay in before it moved to an arena.

Code that PyTorch does not know keeps addresses of weights: a library by `ctypes`, a table of
pointers. So that memory is not freed. It holds no bytes, and what touches it finds the weight's
there (see `loading/origins.h` of the library). Then the weight moves back: between two layers or
jobs its tensors view that memory again, as if it had never moved. It stays resident. So does a
weight that the program writes: what was kept of it before it moved must find what was written.

Invariant: of a weight that is in an arena, and of one that moved back, all tensors and all kept
addresses find the same bytes. Blind: what `loading/origins.h` says; arrays that were made over the
arena, which keep its memory; a table of addresses of which nobody reads the bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tierline_torch.arenas.viewers import let_view, viewers
from tierline_torch.tensors.weights import Weight

NO_MAPPINGS = "this process has no further mappings (see /proc/sys/vm/max_map_count)"


@dataclass(eq=False)
class Origin:
    """Of one weight."""

    name: str
    storage: torch.UntypedStorage
    start: int
    size_bytes: int
    there: tuple[int, int]
    """The identity of its storage over the arena, and its address."""

    def keep(self) -> None:
        """Do not free this memory, not even when the process exits: it may be unreadable."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.storage))

    def let_go(self) -> None:
        """It is memory like any other."""
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.storage))


def move_back(origins: Sequence[Origin]) -> None:
    """Let these weights' tensors view their own memory again."""
    found = viewers(dict(one.there for one in origins), "cpu")
    for one in origins:
        let_view(found[one.there[0]], one.storage, one.start)
        one.let_go()


def origin_of(weight: Weight, there: torch.UntypedStorage) -> Origin:
    """The memory of a weight that is in the storage `there` now."""
    place = there._cdata, there.data_ptr()
    return Origin(weight.name, weight.storage, weight.start, weight.size_bytes, place)
