"""Twelve Hard tasks of the kinds that people run, on the `cpu` device, for two minutes.

Not during other tests: the margin follows how much times vary while the programs are measured, and
what is planned with fifteen times as much is refused, rightly.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.crowd.tasks import command, shortfalls

pytestmark = [pytest.mark.slow, pytest.mark.alone]

UNIT_MS = 400
DURATION_S = 120


def test_a_crowd_keeps_its_deadlines_and_its_bounds() -> None:
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        folder = Path(name)
        run = command("cpu", UNIT_MS, "24Mi", DURATION_S, folder)
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert "tasks" in report, done.stderr
        assert report["weights_bytes"] > report["fast_memory_limit_bytes"]
        assert not list(shortfalls(report, folder)), done.stderr
