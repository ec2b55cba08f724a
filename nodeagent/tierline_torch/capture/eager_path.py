"""Has a model take the same path while it is captured as it takes otherwise.

A model must not look at values while it is captured: that waits for the GPU, which has done nothing
yet. Careful code asks PyTorch whether a stream is being captured, and if so does without: it makes
a mask that it would leave out when it sees that nothing is masked, and attention is then computed
with a mask, by slower kernels. But whether anything looks at values can be seen before: PyTorch
says which of its operators wait for the GPU. A model whose uncaptured run has none of these takes
that path when captured, if nobody tells it that it is.

Only this thread is not told, and PyTorch's own code always is: it asks for its own sake (what it
may allocate, whether it may compile). What else waits for the GPU (an extension's own kernels)
shows when the capture fails; the model then runs as it is.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SYNCHRONIZES = "called a synchronizing CUDA operation"


def waits_for_gpu(call: Callable[[], Any]) -> tuple[Any, bool]:
    """Run `call`, uncaptured; what it gives, and whether it made the CPU wait for the GPU.

    As a look at values does.

    True, too, if another thread did so meanwhile.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # "error" would end what other threads do
        try:
            result = call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return result, any(_SYNCHRONIZES in str(one.message) for one in said)


@contextmanager
def eager_path() -> Iterator[None]:
    """Within it, this thread's code outside PyTorch is not told that a stream is being captured."""
    truth = torch.cuda.is_current_stream_capturing
    thread = threading.get_ident()

    def answer() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        told = threading.get_ident() != thread or caller.partition(".")[0] == "torch"
        return truth() if told else False

    torch.cuda.is_current_stream_capturing = answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = truth
