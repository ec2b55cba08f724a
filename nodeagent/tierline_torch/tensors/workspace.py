"""The peak of what a job allocates, from the CPU allocator's own reports.

PyTorch's profiler gets one event for each allocation and release of the allocator; the peak of
their running sum is exact, temporaries inside operators included. What libraries allocate past
PyTorch (a BLAS's packing buffers, once per process) is not in it.

A profile is visible to a program that takes one itself, and one begun by another than the main
thread complains on stderr: where either is so, none is taken, and the peak is not known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType, _disable_profiler
from torch.autograd.profiler import profile

from tierline_client import GiveBack
from tierline_torch.tensors.looking import known_bytes
from tierline_torch.tensors.structures import walk
from tierline_torch.tensors.weights import is_packed

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler else complains about absent GPUs


class WorkspaceMeter:
    """Measures from `begin` to `end`: `peak_bytes` afterwards, None if it could not."""

    def __init__(self) -> None:
        self._taken: list[GiveBack] = []
        self._profile: profile | None = None
        self._results: Any = None

    def begin(self, taken: list[GiveBack]) -> None:
        """Measure from now on, where that disturbs nobody. Until `end` it is ended by `taken`."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and not torch._C._autograd._profiler_enabled():
            # torch.profiler wraps the same profiler, and loads the compiler first: 6 s, once.
            self._taken = taken
            taken.append(_disable_profiler)
            self._profile = profile(use_device=None, profile_memory=True)
            self._profile.__enter__()

    def end(self) -> None:
        """Measure no more."""
        if self._profile is None or not torch._C._autograd._profiler_enabled():
            self._forget()
            return  # one that the program took meanwhile has ended this one
        self._profile.__exit__(None, None, None)
        self._forget()
        self._results = self._profile.kineto_results

    @property
    def peak_bytes(self) -> int | None:
        """The most that was in use at once."""
        if self._results is None:
            return None
        in_use = peak = 0
        for event in self._results.events():
            if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
                in_use += event.nbytes()
                peak = max(peak, in_use)
        return peak

    def _forget(self) -> None:
        """What the program profiles from now on is its own."""
        if _disable_profiler in self._taken:
            self._taken.remove(_disable_profiler)


def standing_bytes(roots: Sequence[torch.nn.Module], inputs: object) -> int:
    """Bytes that stand during the whole job: inputs, and the modules' buffers but weights."""
    standing = {id(one): one for root in roots for one in root.buffers() if not is_packed(one)}
    standing |= {id(one): one for _, one in walk(inputs) if isinstance(one, torch.Tensor)}
    return sum(map(known_bytes, standing.values()))
