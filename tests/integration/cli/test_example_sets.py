"""The examples of a set that is refused and of a loop that trains, run as their pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tierline_cli.errors import EXIT_INFEASIBLE, EXIT_OK

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(example: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierline_cli", "run", str(EXAMPLES / example / "tasks.yaml")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_set_that_no_machine_can_compute_is_refused_before_anything_starts() -> None:
    done = run("2-refused", "--fast-memory", "256Mi", "--profile-jobs", "3")
    assert done.returncode == EXIT_INFEASIBLE, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "not admitted (Overload): the tasks need" in said
    assert "running" not in said


@pytest.mark.slow
def test_an_ordinary_loop_trains_and_keeps_its_bits() -> None:
    done = run("6-training", "--fast-memory", "512Mi", "--duration", "5", "--json")
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    [trained] = report["trainings"]
    assert trained["steps"] > 0
    assert trained["weights"]["verdict"] == "identical", trained
