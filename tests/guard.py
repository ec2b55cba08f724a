"""Ends what a run of tests started, once the run has ended: `python -m tests.guard PID MARK`.

A run that is killed takes nothing with it: agents, servers and programs would go on, in sessions
and groups of their own. All of them have MARK among the names of their first environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path


def start() -> None:
    """Mark this process and all that it will start, and have a guard wait for its end."""
    mark = f"TESTS_OF_TIERLINE_{os.getpid()}"
    subprocess.Popen(
        [sys.executable, "-m", "tests.guard", str(os.getpid()), mark],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # nobody waits for it
    os.environ[mark] = ""


def marked(mark: str) -> list[int]:
    """The processes that have the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"\0{mark}=\0".encode() in b"\0" + path.read_bytes() + b"\0":
                found.append(int(path.parent.name))
    return found


def main(pid: int, mark: str) -> None:
    """Wait for the end of the run; then end what it left."""
    with suppress(ProcessLookupError):
        run = os.pidfd_open(pid)
        wait([run])
        os.close(run)
    while left := marked(mark):  # one that is killed may have started another
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
