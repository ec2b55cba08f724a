"""Tensors over an arena's memory, in the process (`cpu`) or on the GPU (`cuda`).

A window is the arena's range. Every storage made from it keeps it alive, so that a watcher of the
window knows when the last tensor is gone. Nothing here reads the memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch


class HostWindow:
    """Memory of this process."""

    def __init__(self, base: int, size_bytes: int) -> None:
        self.memory = (ctypes.c_char * size_bytes).from_address(base)
        """What every storage keeps alive."""

    def storage(self, offset: int, size_bytes: int) -> torch.UntypedStorage:
        """The storage of one weight, bytes."""
        return torch.frombuffer(
            self.memory, dtype=torch.uint8, offset=offset, count=size_bytes
        ).untyped_storage()


class DeviceWindow:
    """Memory of the current GPU."""

    def __init__(self, base: int, size_bytes: int) -> None:
        self.memory = _Range(base, size_bytes)
        """What every storage keeps alive."""
        self._device = torch.device("cuda", torch.cuda.current_device())

    def storage(self, offset: int, size_bytes: int) -> torch.UntypedStorage:
        """The storage of one weight, bytes."""
        part = _Part(self.memory, offset, size_bytes)
        return torch.as_tensor(part, device=self._device).untyped_storage()


class _Range:
    def __init__(self, base: int, size_bytes: int) -> None:
        self.base, self.size_bytes = base, size_bytes


class _Part:
    """A part of a range, as the array interface that PyTorch takes device memory by."""

    def __init__(self, whole: _Range, offset: int, size_bytes: int) -> None:
        self._whole = whole
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "strides": None,
            "data": (whole.base + offset, False),
        }


def window(kind: str, base: int, size_bytes: int) -> HostWindow | DeviceWindow:
    """The window of an arena on a kind of device, `cpu` or `cuda`."""
    return (DeviceWindow if kind == "cuda" else HostWindow)(base, size_bytes)
