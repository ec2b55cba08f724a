"""A page of reference that is not what the code says is refused by `make verify`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOST = {
    "options.md": "| `--fast-memory`",
    "agent.md": "| `recovery_s`",
    "api.md": "| **`spec.memory",
    "reasons.md": "| `NoPods`",
    "python.md": "### job",
}


@pytest.mark.slow
def test_an_option_a_field_or_a_name_without_its_row_is_refused(tmp_path: Path) -> None:
    pages = tmp_path / "reference"
    shutil.copytree(ROOT / "docs" / "reference", pages)
    command = [sys.executable, "docs/site/reference.py", "--check", str(pages)]
    whole = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stderr) == (0, "")
    for name, row in LOST.items():
        text = (pages / name).read_text()
        assert row in text
        kept = [line for line in text.splitlines(keepends=True) if not line.startswith(row)]
        (pages / name).write_text("".join(kept))
    damaged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert damaged.returncode == 1
    pages_lost = ", ".join(LOST)
    assert damaged.stderr == f"{pages_lost}: not what --write makes of the code\n"
