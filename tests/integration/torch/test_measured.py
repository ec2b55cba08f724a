"""A program with a loop of its own, measured on a node: it writes its profile, then makes room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PATIENCE_S = 300.0
_ENDS_TO_START_ANEW = 75
_PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).eval()
with torch.inference_mode():
    while True:
        model(torch.zeros(1, 64))
"""


@pytest.mark.slow
def test_a_loop_without_end_is_measured_and_ends_when_it_was_planned(tmp_path: Path) -> None:
    measured, planned = tmp_path / "profile.jsonl", tmp_path / "planned"
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={
            **os.environ,
            "TIERLINE_OBSERVE": str(measured),
            "TIERLINE_OBSERVE_JOBS": "3",
            "TIERLINE_PLANNED": str(planned),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (measured.exists() and '{"profile"' in measured.read_text()):
            assert program.poll() is None, program.communicate()[1]
            assert time.monotonic() < deadline, "it wrote no profile"
            time.sleep(0.05)
        planned.touch()
        _, said = program.communicate(timeout=_PATIENCE_S)
    finally:
        program.kill()
        program.wait()

    assert program.returncode == _ENDS_TO_START_ANEW, said
    assert "it ends, to start by its plan" in said
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    (profile,) = [line["profile"] for line in lines if "profile" in line]
    assert sum(layer["bytes"] for layer in profile["layers"]) >= 4 * (64 * 65 + 8 * 65)
