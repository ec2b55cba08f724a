"""Sets of Hard tasks on `cpu` whose proof once did not hold, each by what a release is.

`pair` and `block` are one urgent task with two with long layers, `crops` one that calls its model
four times and has a long one with it. Where every `forward` was a job by itself, `pair` was blocked
twice in a release (300 ms proven, 560 seen), and `crops` was admitted with a quarter of what it
does (271 ms proven, 548 seen). `block` is `pair` within one `tierline.job`, which always held.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_TASK = """apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: faults}}
spec:
  realtime: {{period: {period_ms}ms, deadline: {deadline_ms}ms}}
  memory: {{budget: 256Mi}}
  swap: {{tiers: [dram]}}
  device: {{kind: cpu}}
  template:
    spec:
      containers:
      - name: main
        image: none
        command: ["{python}", "-m", "tests.crowd.faults.program", "{role}", "{work_ms}", "{log}"]
        workingDir: "{root}"
"""


@dataclass(frozen=True)
class Task:
    """A task and what its program does in a release."""

    name: str
    role: str
    work_ms: int
    """What each model computes; `pair` and `block` have half of it in each of two."""
    period_ms: int
    deadline_ms: int


_LONG = (Task("b", "long", 250, 1130, 1130), Task("c", "long", 250, 1370, 1370))
SETS = {
    "pair": (Task("a", "pair", 40, 700, 620), *_LONG),
    "block": (Task("a", "block", 40, 700, 620), *_LONG),
    "crops": (Task("a", "crops", 60, 1000, 330), Task("b", "long", 100, 1300, 1300)),
}


def manifest(name: str, folder: Path) -> str:
    """The tasks of a set as a file of MemTasks; each logs into a file of its name in the folder."""
    return "---\n".join(
        _TASK.format(
            **vars(task),
            python=sys.executable,
            root=_ROOT,
            log=folder / f"{task.name}.log",
        )
        for task in SETS[name]
    )
