"""Where a step can give the device away: around module calls, before nodes of autograd, before an
optimizer's step.

PyTorch's hooks of a module's backward are none of these: they change bits, and raise where an
output is written in place. A node's prehook gets what the node gets, and changes nothing. A node
that other steps meet again (a graph that is kept) has one hook: `_MARK` is in its metadata.

An optimizer's step is one section, or several (`slices`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from tierline_torch.calls import Gate
from tierline_torch.tensors.structures import walk
from tierline_torch.training.steps import Steps

_MARK = "tierline"


class StepGate(Gate):
    """Around each module call within an outermost one."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def enter(self, _module: torch.nn.Module) -> None:
        """Before a call."""
        self._steps.gate()

    def leave(self, _entered: Any) -> None:
        """After it: what comes next may be no module's."""
        self._steps.gate()


def gate_graph(outputs: object, steps: Steps) -> None:
    """Put a gate before each node that leads from these outputs to the parameters."""
    nodes = [
        one.grad_fn
        for _, one in walk(outputs)
        if isinstance(one, torch.Tensor) and one.grad_fn is not None
    ]
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            continue  # a parameter's own, which lives as long as that
        marks: dict[Any, Any] = node.metadata  # type: ignore[assignment]  # the stub has a function
        if _MARK not in marks:
            marks[_MARK] = True
            node.register_prehook(steps.node)
            nodes += [one for one, _ in node.next_functions if one is not None]


def gate_optimizers(steps: Steps) -> list[RemovableHandle]:
    """Put gates around the steps of all optimizers, also of those that are made later."""

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        steps.optimizer_begins(optimizer)

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        steps.optimizer_ends(optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
