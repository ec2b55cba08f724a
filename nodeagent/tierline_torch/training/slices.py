"""An optimizer's step in slices of its parameters, with a gate between two of them.

The optimizers named here compute the step of each parameter from its own gradient and state alone,
in a function that gets lists of all of them. So it is called for one part of the lists after the
other: the same operators, on the same tensors. Not where it takes many tensors at once (`foreach`,
`fused`): these stay one section, as do all other optimizers.

Invariant: what the function writes into a list is in the whole list afterwards, as if it had been
called with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from importlib import import_module
from typing import Any

import torch

_SLICE_BYTES = 4 << 20
"""A slice ends with the parameter that reaches this."""
_FUNCTIONS = (
    *("adam.adam", "adamw.adamw", "sgd.sgd"),
    *("rmsprop.rmsprop", "nadam.nadam", "adagrad.adagrad"),
)


def slice_optimizers(gate: Callable[[], None]) -> list[Callable[[], None]]:
    """Put gates into the steps of these optimizers; returns what takes them out again."""
    undo: list[Callable[[], None]] = []
    for path in _FUNCTIONS:
        module_name, name = path.split(".")
        module = import_module(f"torch.optim.{module_name}")
        original = getattr(module, name, None)
        if original is not None:  # not in every PyTorch
            setattr(module, name, _sliced(original, gate))
            undo.append(partial(setattr, module, name, original))
    return undo


def _sliced(original: Callable[..., None], gate: Callable[[], None]) -> Callable[..., None]:
    @wraps(original)
    def sliced(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        together = kwargs.get("foreach") or kwargs.get("fused")
        on_processor = all(one.device.type == "cpu" for one in params)
        if together or not on_processor or not params or torch.compiler.is_compiling():
            original(params, *args, **kwargs)
            return
        for begin, end in _slices(params):
            if begin:
                gate()
            parts = [one[begin:end] if _each(one, params) else one for one in args]
            original(params[begin:end], *parts, **kwargs)
            for whole, part in zip(args, parts, strict=True):
                if part is not whole:
                    whole[begin:end] = part

    return sliced


def _each(given: object, params: Sequence[torch.Tensor]) -> bool:
    """Whether it has an entry for each parameter."""
    return isinstance(given, list) and len(given) == len(params)


def _slices(params: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    begin = size = 0
    for at, one in enumerate(params):
        size += one.nbytes
        if size >= _SLICE_BYTES:
            yield begin, at + 1
            begin, size = at + 1, 0
    if begin < len(params):
        yield begin, len(params)
