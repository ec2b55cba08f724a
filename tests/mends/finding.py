"""Runs the suite that is to find a mend taken out."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.mends.copies import copy_without
from tests.mends.mends import Mend
from tests.shares import ALL

_ROOT = Path(__file__).parents[2]
_FAILED = 1
_WHERE = re.compile(r"^((?:tests|nodeagent)/\S+\.py):(\d+): \w+$", re.MULTILINE)
_SLOW_S = 1800


@dataclass(frozen=True)
class Found:
    """What came of it."""

    failed: bool
    why: str
    took_s: float


def find(mend: Mend | None, suite: str, **environment: str) -> Found:
    """Run a suite without the mend."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        values = {**copy_without(mend, Path(folder)), ALL: "1", **environment}
        failed, why = _run(suite, values)
        return Found(failed, why, time.monotonic() - began_s)


def _run(suite: str, environment: Mapping[str, str]) -> tuple[bool, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", suite],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SLOW_S,
        check=False,
    )
    if done.returncode not in (0, _FAILED):
        raise RuntimeError(f"{suite} could not be run:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
    return done.returncode == _FAILED, _statement(done.stdout)


def _statement(output: str) -> str:
    """The statement of a test at which it failed."""
    places = _WHERE.findall(output)
    if not places:
        return ""
    path, line = places[-1]
    return (_ROOT / path).read_text().splitlines()[int(line) - 1].strip()
