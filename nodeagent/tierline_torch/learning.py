"""Watches one run of a job: which module calls read which bytes, in which order.

A dispatch mode sees every tensor that an operator gets, also inside C++ composites, and the stack
of module calls tells in whose forward it happens. It sees neither operators of other threads nor
reads past the dispatcher (`numpy()`, compiled code): weights read only so count as not read, and
are pinned; and if they were not, the page protection of the arena would still give right bytes.

Nothing is decided here: `selection` does that from the traces of two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tierline_torch.operators import OperatorMode
from tierline_torch.selection import OUTSIDE, Call, Run
from tierline_torch.weights import Weight, byte_range


class Recorder(OperatorMode):
    """Records while it is entered, in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.modules: dict[int, torch.nn.Module] = {}
        """Modules called, by id; held so that no id is used twice."""
        self._stack: list[int] = []
        self._reads: dict[tuple[int, int, int, int], None] = {}

    def call(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one module call as part of the record."""
        self.modules[id(module)] = module
        parent = self._stack[-1] if self._stack else OUTSIDE
        self._stack.append(len(self.calls))
        self.calls.append(Call(module=id(module), parent=parent))
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note the operator's tensors and let it run."""
        kwargs = kwargs or {}
        current = self._stack[-1] if self._stack else OUTSIDE
        for tensor in _tensors((args, kwargs)):
            where = byte_range(tensor, "cpu")
            if where is not None:
                self._reads.setdefault((current, *where))
        return func(*args, **kwargs)

    def run(self, weights: Sequence[Weight]) -> Run:
        """What was recorded, in terms of these weights (by index)."""
        by_storage: dict[int, list[tuple[int, int, int]]] = {}
        for index, weight in enumerate(weights):
            entry = (weight.start, weight.end, index)
            by_storage.setdefault(weight.storage._cdata, []).append(entry)
        reads: dict[tuple[int, int], None] = {}
        for call, storage, first, end in self._reads:
            for start, stop, index in by_storage.get(storage, ()):
                if first < stop and start < end:
                    reads.setdefault((call, index))
        return Run(calls=tuple(self.calls), reads=tuple(reads))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
