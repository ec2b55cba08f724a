"""A run of tests that is killed takes everything with it."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

RUN = """
import os, signal, subprocess
from tests import guard
guard.start()
program = subprocess.Popen(["sleep", "86397"], start_new_session=True)
print(program.pid, flush=True)
input()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_started_ends_with_it() -> None:
    words = [sys.executable, "-c", RUN]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        program = os.pidfd_open(int(run.stdout.readline()))
        run.stdin.write("\n")
    try:
        assert wait([program], 60), "it goes on"
    finally:
        os.close(program)
