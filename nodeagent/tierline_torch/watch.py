"""One job of a site that is not settled, as it is recorded: the program's own calls, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tierline_torch.calls import invoking
from tierline_torch.looking import guarded
from tierline_torch.survey import Recorder, Survey
from tierline_torch.weights import Weight, collect
from tierline_torch.workspace import standing_bytes


class Watch:
    """From `begin` to `end` of one job, in its thread."""

    def __init__(self, survey: Survey, say: Callable[[str], None]) -> None:
        self.recorder: Recorder = survey.recorder()
        self.roots: list[torch.nn.Module] = []
        """The modules of the job's outermost forwards."""
        self.standing_bytes = 0
        """Of inputs and buffers."""
        self.storages: set[int] = set()
        """Of the roots' weights before their first call in this job."""
        self._kind = survey.kind
        self._say = say

    def begin(self, roots: Sequence[torch.nn.Module]) -> None:
        """The job begins; `roots` are those that are known by now."""
        weights = _weights_of(roots, self._kind)
        self.storages |= {one.storage._cdata for one in weights}
        self.recorder.begin(weights)

    def end(self) -> None:
        """The job's work is done."""
        self.recorder.end()

    def unseen(self) -> AbstractContextManager[None]:
        """What happens within is Tierline's, and no part of the job."""
        return self.recorder.unseen()

    def forget(self) -> None:
        """Hold nothing of the model any more."""
        self.roots.clear()
        self.recorder.modules.clear()

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one outermost forward of the job."""
        with guarded(self._say, f"look at the inputs of {type(module).__name__}"), self.unseen():
            if not any(root is module for root in self.roots):
                self.roots.append(module)
                weights = _weights_of([module], self._kind)
                self.storages |= {one.storage._cdata for one in weights}
            standing = standing_bytes(self.roots, (args, kwargs))
            self.standing_bytes = max(self.standing_bytes, standing)
        call = self.recorder.call
        with invoking(call):
            return call(module, args, kwargs)


def _weights_of(roots: Sequence[torch.nn.Module], kind: str) -> list[Weight]:
    return collect((("", module) for root in roots for module in root.modules()), kind)
