"""The backward or step in which a thread is, by its stack: a program may leave one by an exception.

Then none of the hooks comes that end them, and a note of their begin says nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType

import torch

_OPTIMIZER = inspect.getfile(torch.optim.Optimizer)
_AROUND_STEP = "wrapper"
"""The function that PyTorch puts around each optimizer's step, with its hooks."""
_FILES = {
    _OPTIMIZER,
    inspect.getfile(torch.nn.Module),
    inspect.getfile(torch.autograd),
    inspect.getfile(torch.autograd.graph),
}


def runs(thread: int) -> bool:
    """Whether this thread (`threading.get_ident`) is in a module, a backward or an optimizer."""
    return any(frame.f_code.co_filename in _FILES for frame in _stack(thread))


def optimizing(thread: int) -> int:
    """How many steps of optimizers it is in: one may call another's."""
    return sum(
        frame.f_code.co_name == _AROUND_STEP and frame.f_code.co_filename == _OPTIMIZER
        for frame in _stack(thread)
    )


def _stack(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
