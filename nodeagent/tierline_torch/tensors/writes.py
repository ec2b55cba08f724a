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

from tierline_torch.tensors.operators import OperatorWatch, written_by

_NO_STORAGE = 0


class Writes(OperatorWatch):
    """Watches the runs within it."""

    def __init__(self) -> None:
        self.outside = False
        """Whether one wrote to what it had not made itself, or may have, or drew random numbers."""
        self._made: set[int] = set()
        self._declared: set[int] = set()

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """What it makes shows when it has run."""

    def saw(
        self,
        operator: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
    ) -> None:
        """Note what the operator wrote and made."""
        given = set(_storages((args, kwargs)))
        declared = set(_storages(list(written_by(operator, args, kwargs))))
        self._declared |= declared
        written = declared if hasattr(operator, "_schema") else given
        if not self._made.issuperset(written) or _draws(operator):
            self.outside = True
        self._made.update(set(_storages(result)) - given - {_NO_STORAGE})

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


def _storages(tree: object) -> Iterator[int]:
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            try:
                yield leaf.untyped_storage()._cdata
            except RuntimeError:  # a sparse one, or one that wraps others
                yield _NO_STORAGE
