"""One run of a set by `tierline run`, and what did not hold in it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crowd.faults.sets import SETS, manifest
from tests.crowd.log import Job, differences, overlaps, read

_BUSY = "while True: pass"
_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Run:
    """What one run said, and what the programs' own logs say."""

    report: dict[str, Any]
    """The JSON of `tierline run`; it has no tasks if they were refused."""
    said: str
    """On standard error."""
    jobs: list[Job] = field(default_factory=list)

    def late(self, task: str) -> int:
        """Jobs of a task that had not returned when they were due, by its log."""
        return sum(one.returned_ns > one.due_ns for one in self._counted(task))

    def worst_s(self, task: str) -> float:
        """The longest time from a release to the return of one of its calls, by its log."""
        return max((j.returned_ns - j.release_ns for j in self._counted(task)), default=0) / 1e9

    def _counted(self, task: str) -> list[Job]:
        return [job for job in self.jobs if job.task == task and job.counts]

    def wrong(self) -> list[str]:
        """What the agent says and the logs do not, and what cannot be: two jobs at once."""
        told = [line for task in self.report["tasks"] for line in differences(task, self.jobs)]
        return [*told, *overlaps(self.jobs)]

    def broken(self) -> Iterator[str]:
        """What was proven and did not hold, by the logs."""
        for task in self.report["tasks"]:
            name, bound_s = task["name"], task["predicted_worst_s"]
            if self.late(name):
                yield f"{name}: {self.late(name)} of {task['jobs']} jobs late"
            if self.worst_s(name) > bound_s:
                yield f"{name}: {self.worst_s(name):.3f} s of {bound_s:.3f} s proven"


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that want a processor all the time."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def run(name: str, duration_s: float, margin: float | None = None, busy: int = 0) -> Run:
    """Run a set, with the margin that the machine's steadiness asks for if none is given.

    `busy` processes want a processor from when the first program has begun, which was measured and
    planned without them.
    """
    with tempfile.TemporaryDirectory(prefix="tl-") as temporary:
        folder = Path(temporary)
        file = folder / "tasks.yaml"
        file.write_text(manifest(name, folder))
        command = ["-m", "tierline_cli", "run", str(file), "--json", "--duration", str(duration_s)]
        if margin is not None:
            command += ["--margin", str(margin)]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, *command], stdout=pipe, stderr=pipe, text=True
        ) as process:
            while not list(folder.glob("*.log")):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_LOOK_AGAIN_S)
                    break
            with load(busy):
                answer, said = process.communicate()
        if not answer:
            raise RuntimeError(said)
        jobs = [
            job
            for task in SETS[name]
            if (log := folder / f"{task.name}.log").exists()
            for job in read(log, task.name)
        ]
        return Run(json.loads(answer), said, jobs)
