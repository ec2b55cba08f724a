"""Aliases of a weight's memory: a weight that has one stays where it is.

A storage is used by its own Python object and by each tensor of a weight; more uses are other
tensors, arrays or capsules over the same bytes, through which the program may write later. PyTorch
does not count the owners of memory that it did not allocate: a loaded file has none that writes, an
array may. Only for such storages Python's collector is asked what has that memory.

On `cpu` a weight that is a part of its storage stays, too: by that storage a program reaches the
rest (`untyped_storage`, `as_strided`, a flat buffer that it takes back).

Invariant: `seen_by_others` may name a weight that nobody else sees, and leaves out none that a
tensor, an array or a buffer of Python sees. Blind: owners that only C code holds.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import mmap
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from types import FrameType
from typing import Any

import torch

from tierline_torch.tensors.tracked import of_kinds, tracked
from tierline_torch.tensors.weights import Weight

_OWN = __name__.partition(".")[0]
"""The plugin."""
_FRAME_AND_HERE = 3
"""References to the dictionary of a frame that nobody else has: the frame's, and two to ask."""


def uses(storage: torch.UntypedStorage) -> int:
    """By how many tensors and objects a storage is used, its own Python object among them."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def seen_by_others(weights: Sequence[Weight]) -> set[int]:
    """Which of these (by index) something else than their tensors may see, now or later.

    `weights` are all that share these storages. Ask between jobs, when a job's locals are gone.
    """
    viewers: dict[int, set[int]] = {}
    for one in weights:
        mine = {id(tensor) for tensor in one.tensors}
        viewers.setdefault(one.storage._cdata, set()).update(mine)
    seen: set[int] = set()
    foreign: list[int] = []
    for index, one in enumerate(weights):
        storage, known = one.storage, len(viewers[one.storage._cdata]) + 1
        one.uses = uses(storage)
        on_host = storage.device.type == "cpu"  # on a GPU all count as shared
        part = one.start > 0 or one.end < storage.nbytes()
        if one.uses > known or (on_host and (storage.is_shared() or part)):
            seen.add(index)
        elif on_host and not storage.resizable():  # not of PyTorch's allocator
            foreign.append(index)
    if foreign:
        owned = _exported()
        for index in foreign:
            low = weights[index].storage.data_ptr() + weights[index].start
            high = low + weights[index].size_bytes
            if any(low < end and begin < high for begin, end in owned):
                seen.add(index)
    return seen


def _exported() -> list[tuple[int, int]]:
    """The memory of all arrays and buffers that Python's collector leads to, in up to a second."""
    kinds: tuple[type, ...] = (bytearray, memoryview, mmap.mmap, ctypes.Array)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds = (numpy.ndarray, *kinds)
    reached = tracked()
    reached += _locals()
    # Arrays themselves are not tracked by the collector: those that refer to them are.
    found = of_kinds(chain(reached, gc.get_referents(*reached)), kinds)
    apart = {id(one): one for one in found}.values()
    return [where for one in apart if (where := _memory_of(one)) is not None]


def _locals() -> Iterable[object]:
    """The objects that the frames of all threads hold, but for the plugin's own.

    One of this module would refer to all that is found, one of a job to the output that it returns.
    """
    for frame in sys._current_frames().values():
        outer = frame
        while outer is not None:
            if not str(outer.f_globals.get("__name__")).startswith(_OWN):
                yield from _held_by(outer)
            outer = outer.f_back  # type: ignore[assignment]  # None ends the loop


def _held_by(frame: FrameType) -> list[object]:
    """The objects that a frame's variables hold.

    Before Python 3.13 a function's frame keeps the dictionary that it gives out, and with it what
    the variables were. So it is emptied, unless the program has it, too.
    """
    names: Any = frame.f_locals
    held = list(names.values())
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(names) is dict
    if is_copy and sys.getrefcount(names) == _FRAME_AND_HERE:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            names.pop(name, None)
    return held


def _memory_of(one: Any) -> tuple[int, int] | None:
    try:
        told = getattr(one, "__array_interface__", None)
        if told is not None:
            begin = int(told["data"][0])
            return (begin, begin + int(one.nbytes)) if told["strides"] is None else _span(one, told)
        with memoryview(one) as view:
            kept = (ctypes.c_char * view.nbytes).from_buffer(view)
            begin = ctypes.addressof(kept)
            return begin, begin + view.nbytes
    except Exception:  # of objects, read-only, not in one piece: a user's class may raise anything
        return None


def _span(array: Any, told: dict[str, Any]) -> tuple[int, int]:
    """The memory between the first and the last byte of a strided array."""
    low = high = int(told["data"][0])
    for size, step in zip(told["shape"], told["strides"], strict=True):
        reach = (size - 1) * step
        low, high = low + min(0, reach), high + max(0, reach)
    return low, high + int(array.itemsize)
