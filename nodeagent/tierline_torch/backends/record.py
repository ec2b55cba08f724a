"""The file into which an observed process writes what it sees, a line at a time.

It is opened once: later the program may have given up its rights, its root directory or its limit
of descriptors. A program may also close descriptors that it knows nothing of, and get this one's
number for a file of its own.

Invariant: what is written goes into the file that was opened first, or into none.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_HIGH = 700
"""A program that counts its descriptors finds the numbers that it would have."""


class Record:
    """The file, for appending."""

    def __init__(self, path: Path, *, empty: bool) -> None:
        """Open it; `empty` drops what is in it. Raises OSError."""
        self._path = path
        self._descriptor = _opened(path, os.O_TRUNC if empty else 0)
        self._identity = _identity(self._descriptor)

    def write(self, line: str) -> None:
        """Append a line. Raises OSError."""
        if _identity(self._descriptor) != self._identity:
            self._descriptor = _opened(self._path, 0)
            self._identity = _identity(self._descriptor)
        data = f"{line}\n".encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


def _opened(path: Path, flags: int) -> int:
    low = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # there may not be so many
        return low
    os.close(low)
    return high


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
