"""Twelve Hard tasks of the kinds that people run on one device, and what a run of them must show.

The programs are in program.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_TASKS = (
    *((f"one-{number}", "one", units) for number, units in enumerate((3, 4, 5, 6, 8, 10, 12))),
    ("two-0", "two", 6),
    ("two-1", "two", 10),
    ("tokens", "tokens", 12),
    ("restarting", "restarting", 8),
    ("requests", "requests", 8),
)
"""Name, role, and the period in units."""
_TASK = """apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: crowd}}
spec:
  realtime: {{period: {period_ms}ms}}
  memory: {{budget: 1Gi}}
  swap: {{tiers: [dram]}}
  device: {{kind: {device}}}
  template:
    spec:
      containers:
      - name: main
        image: none
        command: ["{python}", "-m", {command}]
        workingDir: "{root}"
"""
_STARTS = 5


def command(
    device: str,
    unit_ms: int,
    fast_memory: str,
    duration_s: float,
    folder: Path,
    margin: float | None = None,
) -> list[str]:
    """The run of the tasks, whose programs write their logs into the folder.

    Without a margin the run finds one, by how much times vary while the programs are measured.
    """
    tasks = folder / "tasks.yaml"
    tasks.write_text(_manifest(device, unit_ms, folder))
    options = ["--fast-memory", fast_memory, "--duration", str(duration_s)]
    if margin is not None:
        options += ["--margin", str(margin)]
    return [sys.executable, "-m", "tierline_cli", "run", str(tasks), "--json", *options]


def _manifest(device: str, unit_ms: int, folder: Path) -> str:
    texts = []
    for seed, (name, role, units) in enumerate(_TASKS):
        words = ["tests.crowd.program", role]
        if role == "restarting":
            words = ["tests.crowd.restarting"]
        words += [device, str(seed), str(folder)]
        texts.append(
            _TASK.format(
                name=name,
                period_ms=units * unit_ms,
                device=device,
                python=sys.executable,
                command=", ".join(f'"{word}"' for word in words),
                root=_ROOT,
            )
        )
    return "---\n".join(texts)


def overran(report: dict[str, Any]) -> list[str]:
    """Of which tasks jobs had the device for longer than planned: then no bound is proven."""
    return [task["name"] for task in report["tasks"] if task["overruns"]]


def shortfalls(report: dict[str, Any], folder: Path) -> Iterator[str]:
    """Tell what did not hold, by the report of `tierline run` and by the programs' own logs."""
    if len(report["tasks"]) != len(_TASKS):
        yield f"{len(report['tasks'])} of {len(_TASKS)} tasks ran"
    for task in report["tasks"]:
        name, worst_s = task["name"], task["response_worst_s"]
        if task["jobs"] == 0:
            yield f"{name}: no job"
        if task["misses"] and name != "restarting":  # whose releases nobody serves at times
            yield f"{name}: {task['misses']} of {task['jobs']} jobs late"
        if worst_s > task["predicted_worst_s"]:
            yield f"{name}: {worst_s:.3f} s of {task['predicted_worst_s']:.3f} s proven"
        if task["outputs"]["verdict"] != "identical":
            yield f"{name}: outputs {task['outputs']['verdict']}"
    logs = sorted(folder.glob("*.log"))
    if len(logs) != sum(role != "requests" for _, role, _ in _TASKS):
        yield f"only {[log.stem for log in logs]} kept a log"
    for log in logs:
        releases = [[int(word) for word in line.split()] for line in log.read_text().splitlines()]
        late = sum(end > due for _, end, due in releases)
        if late or not releases:
            yield f"{log.stem}: by its own log {late} of {len(releases)} releases late"
    starts = (folder / "starts").read_text().count("\n")
    if starts < _STARTS:
        yield f"only {starts} starts of the program that crashes"
