"""Holds the size of folders: `python -m tests.folders`; exit 1 on a fault.

A folder has at most 15 files that people write, or a README that says why it has more. A `.c` and
its header count as one, what a generator writes counts as none.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
MOST = 15
WRITTEN = {".py", ".c", ".h", ".sh", ".cu", ".md"}
NOT_COUNTED = {"__init__", "conftest", "README"}
GENERATED = ("generated", "_pb2")


def tracked() -> list[str]:
    """The files of the repository."""
    told = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return told.splitlines()


def faults(files: Iterable[str]) -> list[str]:
    """Which folders are too large, a sentence each."""
    units: dict[str, set[str]] = defaultdict(set)
    explained = set()
    for name in files:
        path = PurePosixPath(name)
        folder = str(path.parent)
        if path.name == "README.md":
            explained.add(folder)
        if (
            path.suffix in WRITTEN
            and path.stem not in NOT_COUNTED
            and not any(word in name for word in GENERATED)
        ):
            units[folder].add(path.stem)
    return [
        f"{folder}: {len(found)} files, and no README.md that says why"
        for folder, found in sorted(units.items())
        if len(found) > MOST and folder not in explained
    ]


if __name__ == "__main__":
    wrong = faults(tracked())
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(f"{len(wrong)} folders to mend")
    sys.exit(bool(wrong))
