"""Whether a run of a model leaves anything but its results.

That is what it writes to memory that it has not made itself, and random numbers that it draws. Seen
are PyTorch's operators and those that extensions declare to it, by what they say of themselves.
Kernels that an extension launches by itself are not seen; nor is compiled code, so nothing is
harmless where there is any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tierline_torch.operators import OperatorMode, written_by

_NO_STORAGE = 0
_IN_TRAINING = frozenset({"training", "train", "use_input_stats"})


class Writes(OperatorMode):
    """Watches the runs within it."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = False
        """Whether one wrote to what it had not made itself, or may have, or drew random numbers."""
        self._made: set[int] = set()
        self._declared: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the operator run, and note what it wrote and made."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = set(_storages((args, kwargs)))
        self._declared.update(_storages(list(written_by(func, args, kwargs))))
        if not self._made.issuperset(_written(func, args, kwargs, given)) or _draws(func):
            self.outside = True
        self._made.update(set(_storages(result)) - given - {_NO_STORAGE})
        return result

    def wrote(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether an operator declared to write some of these, which were made before."""
        return bool(self._declared & (set(_storages(list(tensors))) - {_NO_STORAGE}))

    @property
    def harmless(self) -> bool:
        """Whether nothing is left of such a run but its results: it may be done in vain."""
        compiler = sys.modules.get("torch._dynamo.convert_frame")
        compiled = 0 if compiler is None else getattr(compiler, "FRAME_COUNTER", 1)
        return not self.outside and compiled == 0


def _draws(func: Callable[..., Any]) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _written(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: set[int]
) -> set[int]:
    """The storages of an operator's arguments that it writes to; all of them if it does not say.

    A normalisation does not say that it writes its statistics, but whether it is in training.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return given
    written = []
    for number, argument in enumerate(schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        if argument.name in _IN_TRAINING and value is True:
            return given
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(value)
    return set(_storages(written))


def _storages(tree: object) -> Iterator[int]:
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            try:
                yield leaf.untyped_storage()._cdata
            except RuntimeError:  # a sparse one, or one that wraps others
                yield _NO_STORAGE
