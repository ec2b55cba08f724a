"""One job of a site that is not settled, as it is recorded: the program's own calls, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tierline_client import GiveBack
from tierline_torch.calls import Gate, invoking
from tierline_torch.learning.survey import Recorder, Survey
from tierline_torch.ours import ours
from tierline_torch.tensors.looking import guarded
from tierline_torch.tensors.operators import cover, unseen
from tierline_torch.tensors.weights import Weight, collect
from tierline_torch.tensors.workspace import standing_bytes


class Watch(Gate):
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
        self._weights: list[Weight] = []
        """Of the roots that are known before the job, until it begins."""
        self._kind = survey.kind
        self._say = say
        self._pause = pause

    def look(self, roots: Sequence[torch.nn.Module]) -> None:
        """At those that are known before the job."""
        cover()
        self._weights = _weights_of(roots, self._kind)
        self.storages |= {one.storage._cdata for one in self._weights}

    def begin(self, taken: list[GiveBack]) -> None:
        """The job begins, in this thread; if it does not end, `taken` ends the watching."""
        weights, self._weights = self._weights, []
        self.recorder.begin(weights, taken)

    def end(self) -> None:
        """The job's work is done."""
        if self._kind == "cpu":  # where there is nothing to wait for, and so nothing to go wrong
            self.recorder.end()
            return
        with guarded(self._say, "watch a job"):
            self.recorder.end()

    def forget(self) -> None:
        """Hold nothing of the model any more."""
        self.roots.clear()
        self.recorder.modules.clear()

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one outermost forward of the job."""
        ours(partial(self._look_at, module, args, kwargs))
        with invoking(self):
            return self(module, args, kwargs)

    def _look_at(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with guarded(self._say, f"look at the inputs of {type(module).__name__}"), unseen():
            if not any(root is module for root in self.roots):
                self.roots.append(module)
                weights = _weights_of([module], self._kind)
                self.storages |= {one.storage._cdata for one in weights}
            standing = standing_bytes(self.roots, (args, kwargs))
            self.standing_bytes = max(self.standing_bytes, standing)

    def enter(self, module: torch.nn.Module) -> int:
        """A module call of the job begins."""
        self._pause()
        return self.recorder.enter(module)

    def leave(self, entered: int) -> None:
        """It is over."""
        self.recorder.leave(entered)
        self._pause()


def _weights_of(roots: Sequence[torch.nn.Module], kind: str) -> list[Weight]:
    return collect((("", module) for root in roots for module in root.modules()), kind)
