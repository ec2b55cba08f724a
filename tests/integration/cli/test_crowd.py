"""Twelve Hard tasks of the kinds that people run, on the `cpu` device, until all phases were there.

Not during other tests: the margin follows how much times vary while the programs are measured, and
what is planned with fifteen times as much is refused, rightly; then with longer periods it is not.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.crowd.tasks import command, shortfalls

pytestmark = [pytest.mark.slow, pytest.mark.alone]

UNITS_MS = (400, 800, 1600, 3200)
"""Of periods, until one is long enough for what was measured here."""
DURATION_UNITS = 150
"""All ways in which the periods meet repeat after 120; a minute with the shortest unit."""


def test_a_crowd_keeps_its_deadlines_and_its_bounds() -> None:
    refusals = []
    for unit_ms in UNITS_MS:
        with tempfile.TemporaryDirectory(prefix="tl-") as name:
            folder = Path(name)
            run = command("cpu", unit_ms, "24Mi", DURATION_UNITS * unit_ms / 1000, folder)
            done = subprocess.run(run, capture_output=True, text=True, check=False)
            assert done.stdout, done.stderr
            report = json.loads(done.stdout)
            if "tasks" in report:
                assert report["weights_bytes"] > report["fast_memory_limit_bytes"]
                assert not list(shortfalls(report, folder)), done.stderr
                return
            assert (report["constraint"], "planned with" in done.stderr) == ("deadline", True)
            refusals.append(done.stderr)
    pytest.fail("\n".join(refusals))
