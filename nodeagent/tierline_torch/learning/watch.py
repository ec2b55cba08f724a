"""One job of a site that is not settled, as it is recorded: the program's own calls, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tierline_torch.calls import invoking
from tierline_torch.learning.survey import Recorder, Survey
from tierline_torch.tensors.looking import guarded
from tierline_torch.tensors.operators import unseen
from tierline_torch.tensors.weights import Weight, collect
from tierline_torch.tensors.workspace import standing_bytes


class Watch:
    """From `begin` to `end` of one job, in its thread."""

    def __init__(
        self, survey: Survey, say: Callable[[str], None], pause: Callable[[], None]
    ) -> None:
        """`pause` is called where others may have the device."""
        self.recorder: Recorder = survey.recorder()
        self.roots: list[torch.nn.Module] = []
        """The modules of the job's outermost forwards."""
        self.standing_bytes = 0
        """Of inputs and buffers."""
        self.storages: set[int] = set()
        """Of the roots' weights before their first call in this job."""
        self._kind = survey.kind
        self._say = say
        self._pause = pause

    def begin(self, roots: Sequence[torch.nn.Module]) -> None:
        """The job begins; `roots` are those that are known by now."""
        weights = _weights_of(roots, self._kind)
        self.storages |= {one.storage._cdata for one in weights}
        self.recorder.begin(weights)

    def end(self) -> None:
        """The job's work is done."""
        self.recorder.end()

    def forget(self) -> None:
        """Hold nothing of the model any more."""
        self.roots.clear()
        self.recorder.modules.clear()

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one outermost forward of the job."""
        with guarded(self._say, f"look at the inputs of {type(module).__name__}"), unseen():
            if not any(root is module for root in self.roots):
                self.roots.append(module)
                weights = _weights_of([module], self._kind)
                self.storages |= {one.storage._cdata for one in weights}
            standing = standing_bytes(self.roots, (args, kwargs))
            self.standing_bytes = max(self.standing_bytes, standing)
        with invoking(self._paused):
            return self._paused(module, args, kwargs)

    def _paused(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._pause()
        result = self.recorder.call(module, args, kwargs)
        self._pause()
        return result


def _weights_of(roots: Sequence[torch.nn.Module], kind: str) -> list[Weight]:
    return collect((("", module) for root in roots for module in root.modules()), kind)
