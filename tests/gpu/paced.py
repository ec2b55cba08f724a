"""A process with a model, loaded, that runs jobs when it is told to: several can take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys

EARLY = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""PyTorch would start the driver, and so the library, to see whether there is one."""

_PATIENCE_S = 30.0


class Paced:
    """`tests.gpu.task --paced`, of `jobs` jobs a round; a prepared one loads when it is told to."""

    def __init__(
        self,
        model: str,
        mode: str,
        jobs: int,
        environment: dict[str, str],
        *,
        prepared: bool = False,
    ) -> None:
        early = EARLY if prepared else {}
        self._model = model
        self._is_prepared = not prepared
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.gpu.task", model, "--mode", mode),
                *("--jobs", str(jobs), "--paced"),
                *(("--prepared",) if prepared else ()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, **early},
        )

    def prepared(self) -> None:
        """Wait until one that shall be prepared is."""
        if not self._is_prepared:
            self._line()
            self._is_prepared = True

    def load(self) -> None:
        """Let a prepared one go on, as soon as it is."""
        self.prepared()
        self._say("load")

    def ready(self) -> None:
        """Wait until it has loaded the model."""
        self._line()

    def round(self) -> list[float]:
        """Run a round; seconds of each job. Raises SystemExit if the process has ended."""
        self._say("go")
        times: list[float] = json.loads(self._line())
        return times

    def end(self) -> None:
        """Let it end by itself, or end it if it does not."""
        if self._process.returncode is not None:
            return
        try:
            self._process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _say(self, word: str) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise TypeError("a paced task has a pipe")
        try:
            pipe.write(f"{word}\n")
            pipe.flush()
        except BrokenPipeError:
            raise SystemExit(f"the process with {self._model} ended") from None

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit(f"the process with {self._model} ended")
        return line
