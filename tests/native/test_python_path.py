"""A preloaded library lets a program's Python find the plugin, whatever PYTHONPATH it had."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tierline_client.library import library_path

PLUGIN = "/run/tierline/python"


def python_path(**variables: str) -> str:
    """PYTHONPATH as a Python sees it that a shell starts, both with the library preloaded."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = 'import os; print(os.environ.get("PYTHONPATH"))'
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1"', sys.executable, program],
        env={**kept, "LD_PRELOAD": str(library_path()), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        ({}, PLUGIN),
        ({"PYTHONPATH": ""}, PLUGIN),
        ({"PYTHONPATH": "/app"}, f"/app:{PLUGIN}"),
        ({"PYTHONPATH": f"/app:{PLUGIN}-2"}, f"/app:{PLUGIN}-2:{PLUGIN}"),
        ({"PYTHONPATH": f"{PLUGIN}:/app"}, f"{PLUGIN}:/app"),
    ],
    ids=["none", "empty", "of its own", "of a similar name", "there already"],
)
def test_the_plugin_s_folder_comes_last(own: dict[str, str], seen: str) -> None:
    assert python_path(TIERLINE_PYTHON=PLUGIN, **own) == seen


def test_a_program_that_is_no_task_keeps_its_own() -> None:
    assert python_path(PYTHONPATH="/app") == "/app"
    assert python_path(PYTHONPATH="/app", TIERLINE_PYTHON="") == "/app"
