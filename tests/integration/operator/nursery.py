"""Starts operators without the seconds that their imports take: each is a fork of this process.

    python -m tests.integration.operator.nursery

Reads one JSON object a line, `{"environment": {...}, "log": PATH}`, and answers with the process id
of an operator that runs exactly what `python -m tierline_operator` runs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any, NoReturn

from tierline_operator.__main__ import run


def live(order: dict[str, Any]) -> NoReturn:
    """Be an operator."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    try:
        run(args=[], prog_name="tierline_operator")
    finally:
        os._exit(0)


def main() -> None:
    """Start what is asked for until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody stays a zombie
    gc.collect()
    gc.freeze()  # no operator copies the memory of what it shares with the others to look at it
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
