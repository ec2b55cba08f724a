"""A process with a model, loaded, that runs jobs when it is told to: several can take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys


class Paced:
    """`tests.gpu.task --paced`, of `jobs` jobs a round."""

    def __init__(self, model: str, mode: str, jobs: int, environment: dict[str, str]) -> None:
        self._model = model
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.gpu.task", model, "--mode", mode),
                *("--jobs", str(jobs), "--paced"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def ready(self) -> None:
        """Wait until it has loaded the model."""
        self._line()

    def round(self) -> list[float]:
        """Run a round; seconds of each job. Raises SystemExit if the process has ended."""
        pipe = self._process.stdin
        if pipe is None:
            raise TypeError("a paced task has a pipe")
        pipe.write("go\n")
        pipe.flush()
        times: list[float] = json.loads(self._line())
        return times

    def end(self) -> None:
        """Let it end by itself."""
        self._process.communicate()

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit(f"the process with {self._model} ended")
        return line
