"""Records one job by its modules and operators: which module calls read and write which bytes.

Every tensor that an operator gets is seen, also inside C++ composites, and the stack of module
calls tells in which module's forward it happens. What an operator declares to write is noted as
well. It sees neither operators of other threads nor reads past the dispatcher (`numpy()`, compiled
code): weights read only so count as not read, and are pinned; and if they were not, the page
protection of the arena would still give right bytes.

Nothing is decided here: `selection` does that from the records of several jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tierline_client import GiveBack
from tierline_torch.arenas.selection import OUTSIDE, Call, Run
from tierline_torch.tensors.looking import byte_range, tensors_of
from tierline_torch.tensors.operators import OVER, OperatorWatch, resume, written_by
from tierline_torch.tensors.weights import Weight
from tierline_torch.tensors.workspace import WorkspaceMeter


class ModuleRecorder(OperatorWatch):
    """See `survey.Recorder`."""

    def __init__(self) -> None:
        self.modules: dict[int, torch.nn.Module] = {}
        self._meter = WorkspaceMeter()
        self._calls: list[Call] = []
        self._stack: list[int] = []
        self._reads: dict[tuple[int, int, int, int], None] = {}
        self._writes: set[tuple[int, int, int]] = set()

    @property
    def workspace_bytes(self) -> int | None:
        """The allocator's peak."""
        return self._meter.peak_bytes

    def begin(self, weights: Sequence[Weight], taken: list[GiveBack]) -> None:
        """Reads are found by storage, in the end: which weights there are may show only then."""
        del weights
        taken += OVER
        self._meter.begin(taken)
        self.watch()

    def end(self) -> None:
        """See no more."""
        self.unwatch()
        self._meter.end()

    def enter(self, module: torch.nn.Module) -> int:
        """A module call begins, within those that have not ended."""
        self.modules[id(module)] = module
        within = len(self._stack)
        parent = self._stack[-1] if within else OUTSIDE
        self._calls.append(Call(module=id(module), parent=parent))
        self._stack.append(len(self._calls) - 1)
        resume()
        return within

    def leave(self, entered: int) -> None:
        """It has ended, and all within it that were interrupted before they could say so."""
        del self._stack[entered:]

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note the operator's tensors."""
        current = self._stack[-1] if self._stack else OUTSIDE
        for tensor in tensors_of((args, kwargs)):
            where = byte_range(tensor, "cpu")
            if where is not None:
                self._reads.setdefault((current, *where))
        for tensor in written_by(operator, args, kwargs):
            where = byte_range(tensor, "cpu")
            if where is not None:
                self._writes.add(where)

    def run(self, weights: Sequence[Weight]) -> Run:
        """The record, in terms of these weights."""
        by_storage: dict[int, list[tuple[int, int, int]]] = {}
        for index, weight in enumerate(weights):
            entry = (weight.start, weight.end, index)
            by_storage.setdefault(weight.storage._cdata, []).append(entry)

        def among(storage: int, first: int, end: int) -> Iterator[int]:
            for start, stop, index in by_storage.get(storage, ()):
                if first < stop and start < end:
                    yield index

        reads: dict[tuple[int, int], None] = {}
        for call, *where in self._reads:
            for index in among(*where):
                reads.setdefault((call, index))
        writes = frozenset(index for one in self._writes for index in among(*one))
        return Run(calls=tuple(self._calls), reads=tuple(reads), writes=writes)
