"""A run of one task on the GPU by `tierline run`, without a deadline: its end, and what it said."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_TASK = """apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: alone}}
spec:
  realtime: {{period: 500ms, criticality: BestEffort}}
  memory: {{budget: 24Gi}}
  swap: {{tiers: [dram]}}
  device: {{kind: cuda}}
  template:
    spec:
      containers:
      - name: main
        image: none
        command: {command}
        env: {environment}
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run(
    file: Path,
    words: list[str],
    *options: str,
    timeout_s: float,
    environment: Mapping[str, str] = {},  # read alone
) -> tuple[str, str]:
    """How a run of this Python with these words ended ("exit 0", "hangs"), and what it said.

    `file`: where the manifest is written; the task has its name.
    """
    variables = [{"name": name, "value": value} for name, value in environment.items()]
    text = _TASK.format(
        name=file.stem,
        command=json.dumps([sys.executable, *words]),
        environment=json.dumps(variables),
    )
    file.write_text(text)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tierline_cli", "run", str(file), *options],
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return "hangs", _text(late.stdout, late.stderr)
    return f"exit {done.returncode}", _text(done.stdout, done.stderr)


def _text(*outputs: bytes | None) -> str:
    return _CONTROL.sub("", b"".join(filter(None, outputs)).decode(errors="replace"))
