"""Whether two descriptors are one open file, asked of the kernel (kcmp).

Exported device memory has no name: all descriptors of the driver have the same device and inode.
But a descriptor that went to a client and came back is still the same open file, also after the
process that made it has died, and that only this process's own descriptors can be.
"""

from __future__ import annotations

import ctypes
import os
import platform
from bisect import bisect_left
from functools import cmp_to_key
from typing import Generic, TypeVar

_CALL_NUMBERS = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE = 0
_EQUAL, _LESS = 0, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = (ctypes.c_long,) * 6

_T = TypeVar("_T")


def compare(left: int, right: int) -> int:
    """Order of two descriptors' open files: 0 if they are the same, else -1 or 1, consistently.

    Raises OSError: the kernel lacks kcmp, or a filter of system calls forbids it.
    """
    pid = os.getpid()
    number = _CALL_NUMBERS[platform.machine()]
    order = int(_libc.syscall(number, pid, pid, _KCMP_FILE, left, right))
    if order < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot compare descriptors by kcmp: {os.strerror(code)}")
    if order == _EQUAL:
        return 0
    return -1 if order == _LESS else 1


class OpenFiles(Generic[_T]):
    """Values by open file, in the kernel's order."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._values: list[_T] = []

    def find(self, descriptor: int) -> _T | None:
        """The value of the open file that `descriptor` leads to. Raises OSError."""
        at = self._place(descriptor)
        if at < len(self._descriptors) and compare(self._descriptors[at], descriptor) == 0:
            return self._values[at]
        return None

    def add(self, descriptor: int, value: _T) -> None:
        """Keep a value; the descriptor stays open until `remove`. Raises OSError."""
        at = self._place(descriptor)
        self._descriptors.insert(at, descriptor)
        self._values.insert(at, value)

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor that was added."""
        at = self._descriptors.index(descriptor)
        del self._descriptors[at], self._values[at]

    def _place(self, descriptor: int) -> int:
        return bisect_left(self._descriptors, _key(descriptor), key=_key)


_key = cmp_to_key(compare)
