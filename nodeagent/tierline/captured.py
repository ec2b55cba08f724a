"""`model = tierline.captured(model)`: run a static model as one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def captured(model: torch.nn.Module) -> torch.nn.Module:
    """Wrap a model so that each shape of its inputs runs as one captured CUDA graph.

    Jobs become shorter (nothing is launched kernel by kernel) and steady, and stream as ever. The
    model must be static: what it does may depend on its inputs' shapes, not on their values. On a
    CPU, or with gradients, it runs as it is. Works without Tierline too. One that looks at values
    unless it is captured, as some of transformers do, is captured as PyTorch would: it says that
    its graph and its first calls may differ in last bits.

    Other weights, buffers or modules, and `train()`, are seen, and captured again. Hooks, other
    attributes and global settings of PyTorch stay as they were when a shape was captured: wrap the
    model again when one of these changes.
    """
    from tierline_torch.capture.captured import Captured  # noqa: PLC0415  # loads torch

    return Captured(model)
