"""Copies of bytes that leave no trace in the thread of the program that they are made in.

The first parallel loop of PyTorch in a thread settles with how many threads that thread's matrix
products run from then on (`at::get_num_threads`), and with it their last bits. In a thread of its
own making a program may never run such a loop, so none of ours may run there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")
_SERIAL = 1 << 15
"""Elements; PyTorch runs no parallel loop over less (`at::internal::GRAIN_SIZE`)."""


def copy_bytes(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of bytes into another of the same length; both are contiguous."""
    if target.is_cpu and source.is_cpu:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), len(source))
    else:
        target.copy_(source)


def clear_bytes(target: torch.Tensor) -> None:
    """Fill a tensor of bytes in host memory with zeros."""
    ctypes.memset(target.data_ptr(), 0, len(target))


def apart(compute: Callable[[torch.Tensor], _Result], given: torch.Tensor) -> _Result:
    """`compute` of a tensor, in a thread of ours if PyTorch might run a parallel loop.

    Raises what it raises.
    """
    if not given.is_cpu or given.numel() < _SERIAL:
        return compute(given)
    made: list[_Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                made.append(compute(given))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="tierline-copy")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]
