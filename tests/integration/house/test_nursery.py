"""A fork of the nursery is what the same program is that begins by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import nursery

_ROOT = Path(__file__).parents[3]
_WORDS = {"raise": "ValueError: raise"}
_PROGRAM = "tests.integration.house.speaking"


def both(environment: dict[str, str], *arguments: str) -> list[tuple[str, str, int]]:
    """Output, errors and exit status: of one that begins by itself, and of a fork."""
    alone = subprocess.run(
        [sys.executable, "-m", _PROGRAM, *arguments],
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    read, write = os.pipe()
    forked = nursery.start(_PROGRAM, *arguments, environment=environment, stderr=write)
    os.close(write)
    assert forked.stdin is not None
    assert forked.stdout is not None
    forked.stdin.close()
    with forked.stdout, os.fdopen(read) as errors:
        said = forked.stdout.read(), errors.read(), forked.wait()
    return [(alone.stdout, alone.stderr, alone.returncode), said]


@pytest.mark.parametrize("end", ["return", "exit", "raise", "kill"])
@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_it_cannot_tell(end: str, path: str) -> None:
    alone, forked = both({**os.environ, "LD_LIBRARY_PATH": path, "A_WORD": "said"}, end, "é")
    assert forked[::2] == alone[::2]
    for said in (forked[1], alone[1]):  # between them are frames of runpy, and of the nursery
        first, *_, last = (said + said).splitlines()
        assert (first, last) == ("in its errors", _WORDS.get(end, "in its errors"))
    status = {"return": 0, "exit": 3, "raise": 1, "kill": -signal.SIGKILL}
    assert forked[2] == status[end]


def test_it_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        waiting = nursery.start(_PROGRAM, "read", environment=os.environ, stderr=log)
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    with waiting.stdin, waiting.stdout:
        assert waiting.stdout.readline()
        assert waiting.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.01)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(60) == -signal.SIGTERM
        waiting.kill()  # nobody any more
