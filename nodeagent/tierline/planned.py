"""`model = tierline.planned(model, memory="4GiB")`: train, or infer, within a bound on memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def planned(model: torch.nn.Module, memory: str | int, *, seconds: float = 2.0) -> torch.nn.Module:
    """Compile a model so that its forward and backward stay within `memory`.

    Bytes, or text such as "4GiB"; weights, inputs, activations and gradients count, the optimizer's
    state does not. What does not fit is made again in the backward: the first call traces the
    model, plans for `seconds`, and verifies the plan. Outputs, gradients and buffers have the bits
    of the model as it is. Works without Tierline; on the CPU.

    A model that PyTorch cannot capture as one graph runs as it is, and a sentence says why. So does
    a call while an earlier one still needs the memory: a second forward before the first's
    backward, `retain_graph`. Raises TierlineError if `memory` is none; that no plan fits PyTorch
    tells at the first call, as an error of its backend, with the sentence.
    """
    from tierline_torch.planned.backend import planned as _planned  # noqa: PLC0415  # loads torch

    return _planned(model, memory, seconds)
