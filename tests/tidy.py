"""clang-tidy on files of C: `python -m tests.tidy BUILD CHECKS FILE...`; exit 1 on a fault.

BUILD has the compile commands, CHECKS changes what `.clang-tidy` asks for.

A file without a fault is not read again until something is another that clang-tidy would read of
it: the file, a header, also of the system, a command, a check, clang-tidy itself. That is known in
the user's cache, for all clones: a fault never is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tierline_cluster.cache import folder, once

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "nodeagent" / "native" / ".clang-tidy"


def commands(build: Path) -> dict[Path, list[tuple[Path, list[str]]]]:
    """How each file is compiled, perhaps for several programs: where, and by which words."""
    found = defaultdict(list)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        place = Path(entry["directory"])
        found[place / entry["file"]].append((place, shlex.split(entry["command"])))
    return found


def read_by(place: Path, words: Sequence[str]) -> list[Path]:
    """All files that are read for a compilation, itself and headers of the system too."""
    at = words.index("-o")
    told = subprocess.run(
        [*words[:at], *words[at + 2 :], "-M", "-MT", "it"],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [place / name for name in shlex.split(told.replace("\\\n", " "))[1:]]


@cache
def content(path: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key(tool: str, checks: str, compiled: Iterable[tuple[Path, list[str]]]) -> str:
    """Names all that decides what clang-tidy says of a file, wherever the clone lies."""
    said = [tool, checks, content(CONFIG)]
    for place, words in compiled:
        said += [word.replace(str(ROOT), ".") for word in words]
        for path in read_by(place, words):
            said += [os.path.normpath(path).replace(str(ROOT), "."), content(path)]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def main(build: Path, checks: str, files: Sequence[Path]) -> int:
    """Print the faults of the files, and say whether there are any."""
    tool = subprocess.run(
        ["clang-tidy", "--version"], capture_output=True, text=True, check=True
    ).stdout
    known = commands(build)

    def faults(file: Path) -> str:
        seen = folder("tidy") / key(tool, checks, known[file])
        if seen.exists():
            once(seen, Path.touch)  # it is in use
            return ""
        done = subprocess.run(
            [
                *("clang-tidy", "--quiet", "-p", str(build)),
                *(f"--config-file={CONFIG}", f"--checks={checks}", str(file)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            once(seen, Path.touch)
            return ""
        return done.stdout + done.stderr

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        said = "".join(threads.map(faults, files))
    sys.stdout.write(said)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], [ROOT / p for p in sys.argv[3:]]))
