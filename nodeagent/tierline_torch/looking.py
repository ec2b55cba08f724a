"""What is known of a program's tensors and objects, and the one guard around looking at them.

A tensor may be nested, sparse, on no device, wrapped by a transform, quantised, or of a class that
refuses each question. "Nothing" is an answer. What of ours runs inside the program's calls stands
behind `guarded`: an exception there is a sentence with its reason, and never the program's.

Invariant: `byte_range`, `known_bytes` and `tensors_of` raise nothing that a tensor or a container
raises when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tierline_torch.errors import TierlineError


def byte_range(tensor: torch.Tensor, kind: str) -> tuple[int, int, int] | None:
    """(storage identity, first byte, end byte) of a plain strided tensor on a kind of device.

    None for any other tensor. The storage identity is unique among live storages.
    """
    try:
        return _byte_range(tensor, kind)
    except Exception:  # a user's class may raise anything
        return None


def _byte_range(tensor: torch.Tensor, kind: str) -> tuple[int, int, int] | None:
    # A fake, functional or wrapped tensor has no storage of its own, or no address behind it.
    if tensor.layout is not torch.strided or tensor.device.type != kind or tensor.is_nested:
        return None
    count = tensor.numel()
    if count == 0 or not torch._C._has_storage(tensor):
        return None
    item = tensor.element_size()
    first = int(tensor.storage_offset()) * item
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum(int(size - 1) * int(step) for size, step in steps)
    return int(tensor.untyped_storage()._cdata), first, first + (last + 1) * item


def known_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of one that wraps others, of these. 0 if nothing tells."""
    try:
        return _bytes(tensor)
    except Exception:  # a user's class may raise anything
        return 0


def _bytes(tensor: torch.Tensor) -> int:
    if tensor.device.type == "meta":
        return 0
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten(tensor)
        return sum(known_bytes(getattr(tensor, name)) for name in names)
    if tensor.layout is torch.sparse_coo:
        return known_bytes(tensor._indices()) + known_bytes(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return sum(map(known_bytes, parts))
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
        return sum(map(known_bytes, parts))
    return int(tensor.numel()) * int(tensor.element_size())


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (list, tuple):
        for item in value:  # type: ignore[attr-defined]  # one of the two
            yield from tensors_of(item)
    elif type(value) is dict:
        for item in value.values():
            yield from tensors_of(item)


@contextmanager
def guarded(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Do something of ours within a program's call: what it raises is said, and goes no further.

    But what Tierline has to tell the program (TierlineError) reaches it.
    """
    try:
        yield
    except TierlineError:
        raise
    except Exception as error:
        say(f"could not {what}: {reason_of(error)}")


def reason_of(error: BaseException) -> str:
    """An exception in a few words."""
    try:
        text = str(error).partition("\n")[0][:160]
    except Exception:  # a user's class may raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_transformed() -> bool:
    """Whether a call computes nothing by itself here: it is traced, compiled, or transformed."""
    return (
        torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _without_values()
    )


_MODES: tuple[Any, ...] = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


def _without_values() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(mode) is not None for mode in _MODES
    )
