"""The outermost module calls of a program that trains.

A call with gradients is a part of a step, one without them a part of the step in progress or a turn
by itself. What is traced or transformed computes nothing here, and is left alone.

The connection is made by the first call. A process that was forked from one that trains, as those
of a data loader are, has no gates and no connection. One that cannot reach its agent says so once
and runs as if Tierline were not there, unless TIERLINE_REQUIRED=1.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import torch

from tierline_torch.backends.observed import told_releases
from tierline_torch.calls import invoking, is_forked, plain
from tierline_torch.errors import TierlineError
from tierline_torch.ours import ours
from tierline_torch.telling import tell
from tierline_torch.tensors.looking import is_transformed
from tierline_torch.training.gates import StepGate, gate_graph, gate_optimizers
from tierline_torch.training.leased import Leased
from tierline_torch.training.measured import Measured
from tierline_torch.training.slices import slice_optimizers
from tierline_torch.training.steps import Steps, Turn, in_backward, no_step, told_steps


class Loop:
    """That of this process."""

    def __init__(self) -> None:
        self._gate: StepGate | None = None
        self._steps: Steps | None = None
        self._undo: list[Callable[[], None]] = []
        self._connected = False
        self._said: set[str] = set()

    def steps(self) -> Steps | None:
        """The steps of this process; None if it runs without Tierline. Raises TierlineError."""
        if is_forked():
            return None
        if not self._connected:
            self._connected = True
            ours(self._connect)
        return self._steps

    def _connect(self) -> None:
        try:
            turn = _turn()
        except TierlineError as error:
            if os.environ.get("TIERLINE_REQUIRED") == "1":
                raise
            self._say(f"{error}; this program runs without Tierline")
            return
        self.take_over(Steps(turn, self._say, told_steps()))

    def take_over(self, steps: Steps) -> None:
        """Run the program's calls as parts of these steps from now on."""
        self._connected, self._steps, self._gate = True, steps, StepGate(steps)
        hooks = (one.remove for one in gate_optimizers(steps))
        self._undo = [*hooks, *slice_optimizers(steps.gate)]
        atexit.register(self._end, steps)

    def leave(self) -> None:
        """Run the program's calls as PyTorch would from now on."""
        self._steps = self._gate = None
        for one in self._undo:
            one()

    def _end(self, steps: Steps) -> None:
        if steps.forwards and not steps.number and not is_forked():
            self._say(no_step(steps.forwards))

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            tell(sentence)

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a module call that no other encloses in this thread."""
        steps, gate = self.steps(), self._gate
        if steps is None or gate is None or is_transformed():
            with invoking(plain):
                return plain(module, args, kwargs)
        trains = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
        steps.forward_begins(module, trains=trains)
        try:
            with invoking(gate):
                outputs = gate(module, args, kwargs)
            if trains and not in_backward():
                gate_graph(outputs, steps)
            return outputs
        finally:
            steps.forward_ends()


def _turn() -> Turn:
    """Of this process, as its environment says. Raises TierlineError."""
    socket = os.environ.get("TIERLINE_SOCKET", "")
    observed = os.environ.get("TIERLINE_OBSERVE", "")
    if not observed:
        return Leased(socket)
    leased = Leased(socket) if socket else None
    return Measured(observed, told_releases(), leased, os.environ.get("TIERLINE_PLANNED", ""))


outermost = Loop().outermost
