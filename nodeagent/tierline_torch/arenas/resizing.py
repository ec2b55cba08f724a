"""What a program is told that resizes the memory of a weight in an arena: it has a fixed size.

PyTorch's own error names neither cause nor way out, and leaves the tensor with the sizes that were
asked for: the next forward would read past its memory. So the methods that resize are wrapped once
a weight lies in an arena. Blind: operators that resize their `out`.

Invariant: a tensor whose `resize_` or `resize_as_` raised has the sizes that it had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import torch

from tierline_torch.errors import TierlineError

_SENTENCE = (
    "Tierline holds the memory of this weight, which cannot be resized there: give the weight "
    "memory of its own first, as by `weight.data = weight.data.clone()`"
)
_REFUSAL = "not resizable"
"""In the error of PyTorch that is about the memory."""

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
        resize = _of_storages(torch.UntypedStorage.resize_)
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]  # the point


def _holds(storage: torch.UntypedStorage) -> bool:
    return _held.get(storage._cdata) is storage


def _of_storages(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resize_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if not _holds(self):
            return original(self, *args, **kwargs)
        if args == (self.nbytes(),):
            return self
        raise TierlineError(_SENTENCE)

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
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self.set_(*before)
            raise TierlineError(_SENTENCE) from error

    return resize


def _geometry(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int, Any, Any] | None:
    """Where in which storage a tensor lies; None unless that is over an arena."""
    try:
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            if not _holds(storage):
                return None
            return storage, int(tensor.storage_offset()), tensor.size(), tensor.stride()
    except Exception:  # it has no storage, or a user's class raises anything
        return None
