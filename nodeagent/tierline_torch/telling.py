"""Tells the user sentences, on standard error.

Invariant: no sentence is written into another file of the program, and none that cannot be written
is an error of the program. One that closes descriptor 2 (a daemon) gets its number for the next
file that it opens: Python's standard error then writes there.

Preloaded, the library knows what descriptor 2 was from the process's start on, and what the program
made it by `dup2`; else this module knows what it was when the plugin was loaded. Where a program
puts an object of its own in `sys.stderr`, that gets the sentences as it gets warnings.

It runs in every Python for which there is a PyTorch that loads the plugin.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_DESCRIPTOR = 2


def _identity() -> tuple[int, int] | None:
    try:
        found = os.fstat(_DESCRIPTOR)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_began_as = _identity()


def _is_ours() -> bool:
    import ctypes  # noqa: PLC0415  # most programs are told nothing

    try:
        library = ctypes.CDLL(None)
        return bool(library.tierline_standard_error_is_ours())
    except (AttributeError, OSError):
        return _began_as is not None and _identity() == _began_as


def tell(sentence: str) -> None:
    """Write a sentence for the user, if there is a place for it."""
    stream = sys.stderr
    if stream is None or (stream is sys.__stderr__ and not _is_ours()):
        return
    with suppress(OSError, ValueError):
        stream.write(f"tierline: {sentence}\n")
        stream.flush()
