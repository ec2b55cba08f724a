"""No process and no file of a command outlives it, however it ends.

A command that is killed cannot clean up. So a *sweeper* does, a process of the standard library
alone that is started before anything else. It waits on a pipe whose other end only the command has:
at its end the command is gone, or done. What the command started is told by a variable of the
environment that all of it inherits, so nothing that starts between two instructions is missed, and
no process that merely got an old number is hit.

Invariant: when the sweeper has ended, no process has the variable, and no path that the command
named is there. A program that clears its environment, or writes over it, is not found so; the
command itself ends its programs by their groups.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_VARIABLE: Final = "TIERLINE_COMMAND"
_LONGEST_S: Final = 10.0
"""So long processes may take to die; one in the kernel's hands cannot be waited for."""
_PAUSE_S: Final = 0.01


class Leftovers:
    """Leftovers that a command cleans up when it ends; programs are started after this is made."""

    def __init__(self) -> None:
        """Start the sweeper, and mark all that is started from now on."""
        mark = secrets.token_hex(16)
        self._outer = os.environ.get(_VARIABLE)
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which then asks for the sweep
        )
        os.environ[_VARIABLE] = mark

    def remove_afterwards(self, path: Path) -> None:
        """Have a file or a folder removed at the end."""
        pipe = self._sweeper.stdin
        if pipe is not None:
            pipe.write(os.fsencode(path.absolute()) + b"\0")
            pipe.flush()

    def close(self) -> None:
        """Sweep now, and wait for it."""
        if self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
        self._sweeper.wait()
        if self._outer is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._outer


def _marked(mark: str) -> list[int]:
    """Processes, ours apart, whose environment has the mark."""
    entry = f"{_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # others' processes, and such as ended meanwhile
            if int(folder.name) != os.getpid() and entry in (
                folder.joinpath("environ").read_bytes().split(b"\0")
            ):
                found.append(int(folder.name))
    return found


def _sweep(mark: str) -> None:
    paths = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0") if name]
    deadline = time.monotonic() + _LONGEST_S
    while (pids := _marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)  # a process that forks is met again
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    for ending in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    _sweep(sys.argv[1])
