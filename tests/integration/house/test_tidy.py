"""What clang-tidy found clean is not read again, and everything else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.native_builds import tool
from tests.tidy import ROOT

CLEAN = '#include "own.h"\n\nint part(int number)\n{\n    return number / DIVISOR;\n}\n'
CARELESS = CLEAN.replace("{\n", "{\n    if (number == 0)\n        return 0;\n")


@dataclass(frozen=True)
class Build:
    """A build of one file with a header, and a cache of its own."""

    folder: Path

    def tidied(self, checks: str = "") -> str:
        """What is said of the file; "" if it is clean."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.tidy", self.folder, checks, self.folder / "file.c"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "cluster", "XDG_CACHE_HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == bool(done.stdout), done.stderr
        return done.stdout

    def known(self) -> int:
        """How many states are known as clean."""
        return len(
            [path for path in (self.folder / "tierline/tidy").iterdir() if path.stem != "lock"]
        )


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "own.h").write_text("#define DIVISOR 2\n\nint part(int number);\n")
    (tmp_path / "file.c").write_text(CLEAN)
    command = f"{tool('cc')} -std=c17 -o file.o -c file.c"
    entry = {"directory": str(tmp_path), "command": command, "file": "file.c"}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]))
    return Build(tmp_path)


def test_what_is_clean_is_known_until_it_changes(build: Build) -> None:
    for _ in range(2):
        assert build.tidied() == ""
        assert build.known() == 1
    assert build.tidied("-readability-*") == ""
    assert build.known() == 2
    (build.folder / "file.c").write_text(CLEAN + "\n")
    assert build.tidied() == ""
    assert build.known() == 3


def test_a_fault_is_told_each_time(build: Build) -> None:
    assert build.tidied() == ""
    (build.folder / "file.c").write_text(CARELESS)
    for _ in range(2):
        assert "readability-braces-around-statements" in build.tidied()


def test_a_fault_by_a_header_is_told(build: Build) -> None:
    assert build.tidied() == ""
    header = build.folder / "own.h"
    header.write_text(header.read_text().replace("DIVISOR 2", "DIVISOR 0"))
    assert "clang-analyzer-core.DivideZero" in build.tidied()
