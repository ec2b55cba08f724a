"""Says what a program knows of itself, and ends as it is told."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path


def main(end: str) -> None:
    """All that it knows."""
    atexit.register(print, "the last words")
    print(__name__, Path(sys.argv[0]).name, sys.argv[1:], sys.path[0], Path.cwd())
    print(sorted(os.environ.items()))
    print(sorted(int(name) for name in os.listdir("/proc/self/fd")))  # noqa: PTH208 - names
    print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])
    print(sys.stdout.encoding, sys.stdout.line_buffering, sys.modules["__main__"].__doc__)
    print("in its errors", file=sys.stderr)
    sys.stdout.flush()
    if end == "read":
        input()
    elif end == "exit":
        sys.exit(3)
    elif end == "raise":
        raise ValueError(end)
    elif end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
