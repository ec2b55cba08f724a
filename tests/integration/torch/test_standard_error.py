"""Sentences go to the program's standard error, and into none of its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tierline_client.library import library_path

_MODEL = """
import torch
with torch.inference_mode():
    torch.nn.Linear(2, 2)(torch.ones(2))
"""
_IMPORT = "import torch\n"
_CLOSE = "import os; os.close(2); assert os.open({path!r}, os.O_CREAT | os.O_WRONLY) == 2\n"
_REDIRECT = "import os; os.dup2(os.open({path!r}, os.O_CREAT | os.O_WRONLY), 2)\n"
_WRITE = "os.write(2, b'DATA')\n"
_SENTENCE = "this program runs without Tierline\n"


def _run(program: str, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERLINE_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "TIERLINE_SOCKET": "/nowhere/tierline.sock", **environment},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stderr


PRELOADED = {"LD_PRELOAD": str(library_path())}


@pytest.mark.parametrize("environment", [{}, PRELOADED], ids=["loaded late", "preloaded"])
def test_none_is_written_into_a_file_that_has_the_number_of_standard_error(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "data"
    before = "" if environment else _IMPORT  # what came earlier only the library can know
    program = before + _CLOSE.format(path=str(path)) + _MODEL + _WRITE
    assert not _run(program, **environment)
    assert path.read_text() == "DATA"


def test_a_program_that_closes_standard_error_goes_on(tmp_path: Path) -> None:
    assert not _run(_IMPORT + "import os; os.close(2)\n" + _MODEL)


def test_they_go_where_the_program_has_redirected_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert not _run(_IMPORT + _REDIRECT.format(path=str(path)) + _MODEL, **PRELOADED)
    assert path.read_text().endswith(_SENTENCE)


def test_a_child_says_them_as_its_parent_does(tmp_path: Path) -> None:
    forked = "import os\nif os.fork(): os.wait(); os._exit(0)\n"
    assert _run(_IMPORT + forked + _MODEL, **PRELOADED).endswith(_SENTENCE)


def test_a_program_that_is_started_changes_nothing_for_its_parent() -> None:
    started = "import subprocess; subprocess.run(['true'], stderr=subprocess.DEVNULL)\n"
    assert _run(started + _MODEL, **PRELOADED).endswith(_SENTENCE)
