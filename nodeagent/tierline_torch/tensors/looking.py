"""Looks at a program's tensors and objects, and the one guard around them.

A tensor may be nested, sparse, on no device, wrapped by a transform, quantised, or of a class that
refuses each question. "Nothing" is an answer. What of ours runs inside the program's calls is under
`guarded`: an exception there is a sentence with its reason, and never the program's.

Invariant: `byte_range`, `known_bytes` and `inner_tensors` raise nothing that a tensor raises. All
but `byte_range` are for `ours`: they would take a signal handler's exception for a tensor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch

from tierline_client import afterwards
from tierline_torch.errors import TierlineError

_Result = TypeVar("_Result")


def byte_range(tensor: torch.Tensor, kind: str) -> tuple[int, int, int] | None:
    """(storage identity, first byte, end byte) of a plain strided tensor on a kind of device.

    None for any other tensor, or one without memory. The storage identity is unique among live
    storages. It runs nothing of the tensor's class.
    """
    try:
        return _byte_range(tensor, kind)
    except RuntimeError as error:
        if _is_of_the_program(error):
            raise
        return None


_Base = torch._C.TensorBase
_layout, _device, _is_nested, _shape = (
    getattr(_Base, name).__get__ for name in ("layout", "device", "is_nested", "shape")
)


def _byte_range(tensor: torch.Tensor, kind: str) -> tuple[int, int, int] | None:
    # A fake, functional or wrapped tensor has no storage of its own, or one without an address.
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if own or _layout(tensor) is not torch.strided or _is_nested(tensor):
        return None
    count = _Base.numel(tensor)
    if _device(tensor).type != kind or count == 0 or not torch._C._has_storage(tensor):
        return None
    item = _Base.element_size(tensor)
    first = int(_Base.storage_offset(tensor)) * item
    steps = zip(_shape(tensor), _Base.stride(tensor), strict=True)
    last = sum(int(size - 1) * int(step) for size, step in steps)
    storage, end = _Base.untyped_storage(tensor), first + (last + 1) * item
    # A storage that the program has emptied for a while has no bytes, whatever its tensors say.
    return (int(storage._cdata), first, end) if end <= storage.nbytes() else None


def _is_of_the_program(error: BaseException) -> bool:
    """Whether what was raised here was raised in a signal handler or tracer of the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") != __name__


def known_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of one that is made of others, of these. 0 if nothing tells."""
    try:
        parts = inner_tensors(tensor)
        if parts:
            return sum(known_bytes(part) for _, part in parts)
        if tensor.device.type == "meta":
            return 0
        return int(tensor.numel()) * int(tensor.element_size())
    except Exception:  # a user's class may raise anything
        return 0


_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The parts of a tensor, by name, where it has no bytes of its own, and they are known."""
    try:
        flatten = getattr(type(tensor), "__tensor_flatten__", None)
        if flatten is not None:
            names, _ = flatten(tensor)
            return [(f".{name}", getattr(tensor, name)) for name in names]
        names = _SPARSE.get(tensor.layout, ())
        if names:
            return [(f".{name}", getattr(tensor.detach(), name)()) for name in names]
        if tensor.is_nested:
            return [(f"[{index}]", one) for index, one in enumerate(tensor.detach().unbind())]
    except Exception:  # a user's class may raise anything
        return []
    return []


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


def unasked(work: Callable[[], _Result]) -> _Result:
    """Do something while no class and no function mode of the program is asked, in its thread.

    However that ends, they are asked again where they were before.
    """
    guard = torch._C.DisableTorchFunction()
    leave = partial(guard.__exit__, None, None, None)
    afterwards([leave], guard.__enter__)  # now it knows what was before

    def run() -> _Result:
        guard.__enter__()
        return work()

    return afterwards([leave], run)


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


def is_captured() -> bool:
    """Whether this thread's work on a GPU is captured now, and runs later as a graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_MODES: tuple[Any, ...] = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


def _without_values() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(mode) is not None for mode in _MODES
    )
