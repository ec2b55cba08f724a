"""Processes of `tests.gpu.task` that wait to be told what to do: several can take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

_PATIENCE_S = 30.0


class TaskProcess:
    """One of them. A prepared one imports what takes long, and waits before it touches the GPU."""

    def __init__(
        self,
        model: str,
        mode: str,
        jobs: int,
        environment: Mapping[str, str],
        *options: str,
        prepared: bool,
    ) -> None:
        # PyTorch would start the driver, and so the library, to see whether there is one.
        early = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if prepared else {}
        self.model, self.mode, self.jobs = model, mode, jobs
        self._is_prepared = not prepared
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.gpu.task", model, "--mode", mode),
                *("--jobs", str(jobs), *options),
                *(("--prepared",) if prepared else ()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, **early},
        )

    def prepared(self) -> None:
        """Wait until one that shall be prepared is. Raises SystemExit if it has ended."""
        if not self._is_prepared:
            self.line()
            self._is_prepared = True

    def line(self) -> str:
        """What it says next. Raises SystemExit if it has ended."""
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if not line:
            raise SystemExit(
                f"the process with {self.model} ({self.mode}) ended with {self.process.wait()}"
            )
        return line


class Paced(TaskProcess):
    """One with a model, loaded, that runs `jobs` jobs at each word.

    A prepared one loads when it is told to.
    """

    def __init__(
        self,
        model: str,
        mode: str,
        jobs: int,
        environment: Mapping[str, str],
        *options: str,
        prepared: bool = False,
    ) -> None:
        super().__init__(model, mode, jobs, environment, "--paced", *options, prepared=prepared)

    def load(self) -> None:
        """Let a prepared one go on, as soon as it is."""
        self.prepared()
        self._say("load")

    def ready(self) -> None:
        """Wait until it has loaded the model."""
        self.line()

    def round(self) -> list[float]:
        """Run a round; seconds of each job. Raises SystemExit if the process has ended."""
        self._say("go")
        times: list[float] = json.loads(self.line())
        return times

    def end(self) -> None:
        """Let it end by itself, or end it if it does not."""
        if self.process.returncode is not None:
            return
        try:
            self.process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def _say(self, word: str) -> None:
        pipe = self.process.stdin
        if pipe is None:
            raise TypeError("a paced task has a pipe")
        try:
            pipe.write(f"{word}\n")
            pipe.flush()
        except BrokenPipeError:
            raise SystemExit(f"the process with {self.model} ended") from None
