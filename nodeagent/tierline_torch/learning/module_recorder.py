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

from tierline_torch.arenas.selection import OUTSIDE, Call, Run
from tierline_torch.calls import original
from tierline_torch.tensors.looking import byte_range, tensors_of
from tierline_torch.tensors.operators import OperatorWatch, resume, written_by
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
        self._fault: Exception | None = None

    @property
    def workspace_bytes(self) -> int | None:
        """The allocator's peak."""
        return self._meter.peak_bytes

    def begin(self, weights: Sequence[Weight]) -> None:
        """Reads are found by storage, in the end: which weights there are may show only then."""
        del weights
        self._meter.begin()
        self.enter()

    def end(self) -> None:
        """See no more."""
        self.leave()
        self._meter.end()

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one module call as part of the record."""
        self.modules[id(module)] = module
        parent = self._stack[-1] if self._stack else OUTSIDE
        self._stack.append(len(self._calls))
        self._calls.append(Call(module=id(module), parent=parent))
        try:
            resume()
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note the operator's tensors."""
        try:
            self._note(operator, args, kwargs)
        except Exception as error:  # told by `run`; the operator is the program's
            self._fault = self._fault or error

    def _note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        current = self._stack[-1] if self._stack else OUTSIDE
        for tensor in tensors_of((args, kwargs)):
            where = byte_range(tensor, "cpu")
            if where is not None:
                self._reads.setdefault((current, *where))
        for tensor in written_by(func, args, kwargs):
            where = byte_range(tensor, "cpu")
            if where is not None:
                self._writes.add(where)

    def run(self, weights: Sequence[Weight]) -> Run:
        """What was recorded, in terms of these weights. Raises what noting an operator raised."""
        if self._fault is not None:
            raise self._fault
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
