"""Starts a program again whenever it ends as one that has crashed: a kubelet, as far as it matters.

python -m tests.crowd.restarting DEVICE SEED FOLDER

Each start is a line of FOLDER/starts.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGAIN = 75
"""The exit status of a program that is to be started again."""


def main(device: str, seed: str, folder: str) -> int:
    """Returns the exit status of the last one."""
    while True:
        with Path(folder, "starts").open("a") as starts:
            starts.write("start\n")
        arguments = ["tests.crowd.program", "restarting", device, seed, folder]
        code = subprocess.call([sys.executable, "-m", *arguments])
        if code != AGAIN:
            return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
