"""A program that resizes the memory of a weight in an arena: the weight gets memory of its own.

An arena's memory has a fixed size. PyTorch's own error names neither cause nor way out, and leaves
the tensor with the sizes that were asked for: the next forward would read past its memory. So the
methods that resize are wrapped once a weight lies in an arena. Its tensors then view memory of the
program's, with the same bytes, and the place in the arena is not read any more. Where an array or
another tensor sees that memory, or the program keeps the storage, it is told what to do. Blind:
operators that resize their `out`.

Invariants: all tensors that viewed the same memory before view the same memory after; a
tensor whose `resize_` or `resize_as_` raised has the sizes that it had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from weakref import WeakValueDictionary

import torch

from tierline_torch.arenas.viewers import let_view, viewers
from tierline_torch.errors import TierlineError
from tierline_torch.ours import ours
from tierline_torch.telling import tell
from tierline_torch.tensors.aliases import uses
from tierline_torch.tensors.looking import unasked

_SENTENCE = (
    "Tierline holds the memory of this weight, which cannot be resized there: give the weight "
    "memory of its own first, as by `weight.data = weight.data.clone()`"
)
_REFUSAL = "not resizable"
"""In the error of PyTorch that is about the memory."""

_Parameter = torch.nn.Parameter
_held: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()
"""Storages over arenas, by identity."""
_wrapped: list[str] = []


def hold(storage: torch.UntypedStorage) -> None:
    """Tell programs what to do that resize this storage."""
    _held[storage._cdata] = storage
    if not _wrapped:
        for name in ("resize_", "resize_as_"):
            _wrapped.append(name)
            setattr(torch.Tensor, name, _of_tensors(getattr(torch.Tensor, name)))
        resize = _of_storages(torch.UntypedStorage.resize_, _references_of_a_call())
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]  # the point


def holds(storage: torch.UntypedStorage) -> bool:
    """Whether this storage is over an arena."""
    return _held.get(storage._cdata) is storage


def _references_of_a_call() -> int:
    """How many references there are to a storage that is only there for the call of a method."""
    original, tensor = torch.UntypedStorage.resize_, torch.empty(1)
    try:
        torch.UntypedStorage.resize_ = lambda self, *_: sys.getrefcount(self)  # type: ignore[method-assign]  # for a moment
        return int(tensor.untyped_storage().resize_(4))
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]


def _of_storages(original: Callable[..., Any], references: int) -> Callable[..., Any]:
    @wraps(original)
    def resize_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        kept = sys.getrefcount(self) > references
        if not holds(self):
            return original(self, *args, **kwargs)
        if args == (self.nbytes(),):
            return self
        if kept:  # it would be another one than the weight's from now on
            raise TierlineError(_SENTENCE)
        return original(ours(partial(_given_back, self)), *args, **kwargs)

    return resize_


def _of_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resize(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        before = _geometry(self)
        if before is None:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            if _REFUSAL not in str(error):
                raise
        ours(partial(_set, self, before))
        storage, before = before[0], None
        ours(partial(_given_back, storage, self))
        return original(self, *args, **kwargs)

    return resize


def _given_back(
    storage: torch.UntypedStorage, given: torch.Tensor | None = None
) -> torch.UntypedStorage:
    """Let all that views this storage view one of the program's. Raises TierlineError.

    An array's memory is kept by a tensor that is no parameter, nor `given`.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        where = {storage._cdata: storage.data_ptr()}
        there = viewers(where, storage.device.type)[storage._cdata]
        known = [one for one in there if one is given or issubclass(type(one), _Parameter)]
        if len(known) < len(there) or uses(storage) > len(there) + 1:
            raise TierlineError(_SENTENCE)
        own = torch.UntypedStorage(storage.nbytes(), device=storage.device)
        own.copy_(storage)
        let_view(there, own)
    tell(f"a weight of {storage.nbytes()} bytes was resized: it stays in memory of its own")
    return own


def _geometry(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int, Any, Any] | None:
    """Where in which storage a tensor lies; None unless that is over an arena."""
    return unasked(partial(_looked_at, tensor))


def _looked_at(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int, Any, Any] | None:
    try:
        storage = tensor.untyped_storage()
        if not holds(storage):
            return None
        return storage, int(tensor.storage_offset()), tensor.size(), tensor.stride()
    except RuntimeError:  # it has no storage
        return None


def _set(tensor: torch.Tensor, geometry: tuple[torch.UntypedStorage, int, Any, Any]) -> None:
    inference = torch.inference_mode(tensor.is_inference())
    with torch._C.DisableTorchFunction(), inference, torch.no_grad():
        tensor.set_(*geometry)
