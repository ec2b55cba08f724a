"""How commands end in the hands of a shell: Ctrl-C at any time, readers that leave, full disks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.unit.cli.reporting.test_answers import NODE, PROFILE, TASK, changed

_COMMANDS = ["tierline", "kubectl_tierline", "kubectl_complete_tierline"]


@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("module", ["click", "pydantic"])
def test_ctrl_c_while_modules_load_ends_quietly(command: str, module: str) -> None:
    """The import of a module sends it."""
    source = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Sender:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Sender())
from tierline_cli import start
sys.argv[1:] = []
start.{command}()
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, b"")


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A set that is admitted."""
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([TASK, PROFILE, NODE]))
    return path


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """One that is not."""
    path = tmp_path / "fast.yaml"
    task = changed(TASK, "spec.realtime.period", "5ms")
    path.write_text(yaml.safe_dump_all([task, PROFILE, NODE]))
    return path


def shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `t` is the command, and $1 and so on are `arguments`."""
    script = f't() {{ "$0" -m tierline_cli "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", script, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("way", ["", "--json"])
def test_a_reader_that_leaves_changes_nothing(question: Path, refused: Path, way: str) -> None:
    for path, status in (question, "0"), (refused, "3"):
        line = f"exec 3>&1; (t admit $1 {way}; echo $? >&3) 2>&1 | true"
        seen = shell(line, path)
        assert (seen.stdout.strip(), seen.stderr) == (status, "")


def test_a_verdict_leaves_nothing_on_standard_error(question: Path) -> None:
    seen = shell("t admit $1", question)
    assert (seen.returncode, seen.stderr) == (0, "")


def test_output_that_cannot_be_written_names_its_place(question: Path) -> None:
    seen = shell("t admit $1 > /dev/full", question)
    assert seen.returncode == 1
    assert "cannot write to the standard output: No space left on device" in seen.stderr
    seen = shell("t simulate $1 --trace /dev/full", question)
    assert seen.returncode == 1
    assert "cannot write to /dev/full: No space left on device" in seen.stderr


def test_a_standard_output_that_was_closed_is_no_fault(question: Path) -> None:
    line = f"{sys.executable} -m tierline_cli admit {question} >&-"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
