"""The peak of what a job allocates, from the CPU allocator's own reports.

PyTorch's profiler gets one event for each allocation and release of the allocator; the peak of
their running sum is exact, temporaries inside operators included. What libraries allocate past
PyTorch (a BLAS's packing buffers, once per process) is not in it. Where no profile can be taken
(another profiler runs), the answer is 0 and the caller says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from tierline_torch.structures import walk

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler else complains about absent GPUs


class WorkspaceMeter:
    """Measures the block that it surrounds: `peak_bytes` afterwards."""

    def __init__(self) -> None:
        # torch.profiler wraps the same profiler, and loads the compiler first: 6 s, once.
        free = not torch._C._autograd._profiler_enabled()
        self._profile = profile(use_device=None, profile_memory=True) if free else None
        self.peak_bytes = 0

    def __enter__(self) -> WorkspaceMeter:
        if self._profile is not None:
            self._profile.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._profile is None:
            return
        self._profile.__exit__(*failure)
        results = self._profile.kineto_results
        if results is None:
            return
        in_use = 0
        for event in results.events():
            if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
                in_use += event.nbytes()  # type: ignore[attr-defined]  # the stub lacks it
                self.peak_bytes = max(self.peak_bytes, in_use)


def standing_bytes(roots: Sequence[torch.nn.Module], inputs: object) -> int:
    """Bytes that stand during the whole job: the modules' buffers and the inputs."""
    buffers = {id(one): one.nbytes for root in roots for one in root.buffers()}
    tensors = {id(leaf): leaf.nbytes for _, leaf in walk(inputs) if isinstance(leaf, torch.Tensor)}
    return sum(buffers.values()) + sum(tensors.values())
