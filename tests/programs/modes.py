"""Runs programs in processes of many, plain, observed and managed by a real agent.

A process that ends before its programs do is started again with the programs after the one that
ended it; that one's result says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.agent.agent_process import AgentProcess, plan
from tests.integration.dra.bundle import lay_out

from tierline_client import library_path

_ROOT = Path(__file__).parents[2]
EXTENT_BYTES = {
    "programs": 64 << 10,
    "modules": 64 << 10,
    "zoo": 128 << 10,
    "forks": 64 << 10,
    "gpu": 2 << 20,
}
"""By kind: models should have several; an agent takes no smaller ones, nor a GPU than its."""
_EXTENTS = 2000
_RESIDENT = (0, 1)
"""What a model reads out of turn comes first in its arena, and the arena of most is the first."""
_RING = 24
_SECONDS = 10**9
Results = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Interpreter:
    """The Python of the programs, and how it finds the plugin."""

    path: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_an_image(cls, path: Path, folder: Path) -> Interpreter:
        """One in which Tierline is not installed: it gets what a pod gets, laid out in a folder."""
        lay_out(folder)
        found = {"PYTHONPATH": f"{_ROOT}:{folder / 'python'}"}
        return cls(str(path), found | {"TIERLINE_LIBRARY": str(folder / "libtierline.so")})


OWN = Interpreter()


def run_all(
    folder: Path,
    kind: str,
    name: str,
    seeds: Sequence[int],
    environment: Mapping[str, str],
    python: Interpreter = OWN,
) -> Results:
    """Run the programs of these seeds; returns what was seen of each."""
    results: Results = {}
    left = list(seeds)
    while left:
        path = folder / f"{name}-{left[0]}.jsonl"
        errors = folder / f"{name}-{left[0]}.log"
        code = _process(path, errors, kind, left, environment, python)
        done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        results |= {line["seed"]: line for line in done}
        left = left[len(done) :]
        if left:
            end = errors.read_text(errors="replace").strip().splitlines()[-14:]
            results[left[0]] = {"ended": f"the process ended with {code}", "log": end}
            left = left[1:]
    return results


def _process(
    path: Path,
    errors: Path,
    kind: str,
    seeds: Sequence[int],
    environment: Mapping[str, str],
    python: Interpreter,
) -> int:
    path.unlink(missing_ok=True)
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TIERLINE_")}
    with errors.open("wb") as log:
        done = subprocess.run(
            [python.path, "-m", "tests.programs.running", str(path), kind, *map(str, seeds)],
            cwd=_ROOT,
            env={**ours, **python.environment, **environment},
            stdout=log,
            stderr=log,
            check=False,
        )
    return done.returncode


def on_device(kind: str, python: Interpreter) -> dict[str, str]:
    """What a program of a kind needs besides to run on its device under Tierline."""
    library = python.environment.get("TIERLINE_LIBRARY", str(library_path()))
    found = {"LD_PRELOAD": library, "TIERLINE_LIBRARY": library}
    cuda = {"TIERLINE_DEVICE": "cuda", "TIERLINE_EXECUTION": "Direct"} if kind == "gpu" else {}
    return found | cuda


def plain(folder: Path, kind: str, seeds: Sequence[int], python: Interpreter = OWN) -> Results:
    """Without the plugin."""
    return run_all(folder, kind, "plain", seeds, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, python)


def observed(folder: Path, kind: str, seeds: Sequence[int], python: Interpreter = OWN) -> Results:
    """As a task is measured."""
    observed = {"TIERLINE_OBSERVE": str(folder / "observed.jsonl"), **on_device(kind, python)}
    return run_all(folder, kind, "observed", seeds, observed, python)


class Agent:
    """An agent that streams whatever the programs run, and what it has seen of them."""

    def __init__(self, folder: Path, kind: str, python: Interpreter = OWN) -> None:
        extent_bytes = EXTENT_BYTES[kind]
        self._folder, self._extent_bytes = folder, extent_bytes
        self._python = python
        self._process = AgentProcess(folder)
        settings = json.loads(self._process.config.read_text())
        settings["tiers"][0]["size_bytes"] = 5 * _EXTENTS * extent_bytes // 4
        settings["device"] |= {
            "kind": "cuda" if kind == "gpu" else "cpu",
            "extent_bytes": extent_bytes,
            "fast_bytes": 1024 * extent_bytes,
        }
        self._process.config.write_text(json.dumps(settings))
        self.notices: dict[str, int] = {}
        self.jobs = self.streamed_bytes = 0

    def __enter__(self) -> Agent:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stop()

    def managed(self, kind: str, seeds: Sequence[int]) -> Results:
        """As a task runs by its plan."""
        name = f"programs-{seeds[0]}"
        answer = self._process.register(
            name,
            plan(_EXTENTS, resident=_RESIDENT, ring=_RING, extent_bytes=self._extent_bytes),
            period_ns=_SECONDS,
            deadline_ns=_SECONDS,
            criticality="BestEffort",
        )
        assert answer["ok"], answer
        self._process.call("start", epoch_ns=time.monotonic_ns(), until_ns=0)
        environment = {
            **on_device(kind, self._python),
            "TIERLINE_SOCKET": answer["socket"],
            "TIERLINE_REQUIRED": "1",
        }
        results = run_all(self._folder, kind, "managed", seeds, environment, self._python)
        task = self._process.task(name)
        self.jobs += task["jobs"]
        self.streamed_bytes += task["streamed_bytes"]
        for notice in task["notices"]:
            self.notices[notice["text"]] = self.notices.get(notice["text"], 0) + 1
        self._process.forget_tasks()
        return results
