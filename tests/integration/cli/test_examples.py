"""What `tierline init` writes, and the example that waits for requests, run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tierline_cluster.processes import free_port

EXAMPLES = Path(__file__).parents[3] / "examples"
TIERLINE = (sys.executable, "-m", "tierline_cli")
QUICKLY = ("--fast-memory", "64Mi", "--profile-jobs", "4", "--json")
MARGIN = ("--margin", "1.3")
"""Whether they hold on a machine that is busy with tests is not asked here."""
NO_ANSWER = (URLError, ConnectionError, TimeoutError, HTTPException)
"""Of a server that is not there yet, or ends in the middle of a word."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a name short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        yield Path(name)


def tierline(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TIERLINE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its summary, of a run in which every output was right."""
    out, errors = process.communicate()
    assert process.returncode in {0, 4}, errors
    summary: dict[str, Any] = json.loads(out)
    [task] = summary["tasks"]
    assert task["jobs"] > 0
    assert task["outputs"]["verdict"] == "identical", task["outputs"]
    return summary


def test_what_init_writes_is_run_as_it_is(folder: Path) -> None:
    written = tierline(folder, "init", "mine", "--name", "mine")
    out, _ = written.communicate()
    assert written.returncode == 0
    assert "cd mine && tierline run tasks.yaml" in out
    again = tierline(folder, "init", "mine")
    _, errors = again.communicate()
    assert again.returncode == 2
    assert "mine/tasks.yaml exists, and is not overwritten" in errors
    run = tierline(folder / "mine", "run", "tasks.yaml", *QUICKLY, *MARGIN, "--duration", "4")
    [task] = ended(run)["tasks"]
    assert task["name"] == "mine"


def test_a_name_that_no_task_can_have_is_refused(folder: Path) -> None:
    refused = tierline(folder, "init", "--name", "No Name")
    _, errors = refused.communicate()
    assert (refused.returncode, list(folder.iterdir())) == (2, [])
    assert "--name 'No Name' is no name of a task" in errors


def test_the_server_answers_requests_while_it_is_measured_and_run(folder: Path) -> None:
    port = free_port()
    manifest = (EXAMPLES / "3-server" / "tasks.yaml").read_text()
    command = "tierline_examples.server"
    assert f"{command}]" in manifest
    manifest = manifest.replace(f"{command}]", f'{command}, --port, "{port}"]')
    slowly = manifest.replace("period: 1s", "period: 4s").replace("deadline: 1s", "deadline: 4s")
    (folder / "tasks.yaml").write_text(slowly)
    run = tierline(folder, "run", "tasks.yaml", *QUICKLY, *MARGIN, "--duration", "4")
    answers = set()
    while run.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            run.wait(0.1)
        with (
            suppress(*NO_ANSWER),
            urlopen(f"http://127.0.0.1:{port}/score?seed=3", timeout=5) as answer,
        ):
            answers.add(answer.read())
    ended(run)
    assert len(answers) == 1, "streamed or not, the same bits"
