"""What programs write down of their own jobs, and what it says: apart from the agent's counters.

A program writes a line for each job: when it was released and due, when it called its model, when
that had returned, and of each layer from when to when it computed, in nanoseconds of the monotonic
clock. A layer computes only while its job has the device, so what is read from the lines bounds
what the agent counted from both sides: a job was over between the end of its last layer and the
return of the call, and had the device for as long as its layers computed, at least.

Invariant: nothing here asks the agent, or reads what it wrote.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Span = tuple[int, int]


class Log:
    """The log of one program."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is written, as of a program that is measured."""
        self._file = None if path is None else path.open("a", buffering=1)
        self._spans: list[Span] = []

    @contextmanager
    def job(self, release_ns: int, due_ns: int, *, counts: bool) -> Iterator[None]:
        """A job of a release; `counts`: it is none of those with which the program starts."""
        self._spans.clear()
        asked_ns = time.monotonic_ns()
        yield
        returned_ns = time.monotonic_ns()
        if self._file is not None:
            spans = (moment for span in self._spans for moment in span)
            row = (int(counts), release_ns, due_ns, asked_ns, returned_ns, *spans)
            self._file.write(" ".join(map(str, row)) + "\n")

    def close(self) -> None:
        """Nothing is written any more."""
        if self._file is not None:
            self._file.close()

    def layer(self, began_ns: int) -> None:
        """A layer has computed since then, and gives nothing away before it says so."""
        self._spans.append((began_ns, time.monotonic_ns()))


@dataclass(frozen=True)
class Job:
    """A line of a log."""

    task: str
    counts: bool
    release_ns: int
    due_ns: int
    asked_ns: int
    returned_ns: int
    spans: tuple[Span, ...]
    """When its layers computed."""

    @property
    def computed_ns(self) -> int:
        """What it had the device for, at least."""
        return sum(end - begin for begin, end in self.spans)

    @property
    def began_ns(self) -> int:
        """When it had the device, at the latest."""
        return min((begin for begin, _ in self.spans), default=self.returned_ns)

    @property
    def ended_ns(self) -> int:
        """When it was over, at the earliest."""
        return max((end for _, end in self.spans), default=self.asked_ns)


def read(path: Path, task: str) -> list[Job]:
    """The jobs of a log; a last line that is cut off, as of a program that was killed, is none."""
    lines = path.read_text().splitlines(keepends=True)
    return [_job(line, task) for line in lines if line.endswith("\n")]


def _job(line: str, task: str) -> Job:
    counts, release, due, asked, returned, *moments = map(int, line.split())
    spans = tuple(zip(moments[::2], moments[1::2], strict=True))
    return Job(task, bool(counts), release, due, asked, returned, spans)


@dataclass(frozen=True)
class Between:
    """A figure that lies between two."""

    least: float
    most: float

    def __contains__(self, figure: float) -> bool:
        return self.least <= figure <= self.most

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Figures:
    """What the logs say of one task."""

    jobs: int
    misses: Between
    response_worst_s: Between
    job_time_worst_s: Between
    overruns: Between


def figures(task: str, jobs: Sequence[Job], planned_s: float) -> Figures:
    """Compute one task's figures from the jobs of all; `planned_s` is what a job may take."""
    own = [job for job in jobs if job.task == task and job.counts]
    others = sorted(span for job in jobs if job.task != task for span in job.spans)
    rows = []
    for job in own:
        called_ns = job.returned_ns - job.asked_ns
        others_ns = _common(others, (job.asked_ns, job.returned_ns))
        inside_ns = _common(others, (job.began_ns, job.ended_ns))
        rows.append((job, called_ns - others_ns, inside_ns > 0))
    return Figures(
        jobs=len(own),
        misses=Between(
            sum(job.ended_ns > job.due_ns for job in own),
            sum(job.returned_ns > job.due_ns for job in own),
        ),
        response_worst_s=Between(
            max((job.ended_ns - job.release_ns for job in own), default=0) / 1e9,
            max((job.returned_ns - job.release_ns for job in own), default=0) / 1e9,
        ),
        job_time_worst_s=Between(
            max((job.computed_ns for job in own), default=0) / 1e9,
            max((most_ns for _, most_ns, _ in rows), default=0) / 1e9,
        ),
        # one that was preempted may have the device for longer than it was planned
        overruns=Between(
            sum(job.computed_ns > planned_s * 1e9 for job, _, within in rows if not within),
            sum(most_ns > planned_s * 1e9 for _, most_ns, _ in rows),
        ),
    )


def _common(spans: Sequence[Span], window: Span) -> int:
    """How much of a window these spans fill, which are in order and do not overlap."""
    begin, end = window
    first = max(0, bisect_left(spans, (begin, 0)) - 1)
    last = bisect_left(spans, (end, 0))
    return sum(max(0, min(end, e) - max(begin, b)) for b, e in spans[first:last])


def overlaps(jobs: Iterable[Job]) -> Iterator[str]:
    """Tell where layers of two tasks computed at once, first jobs included."""
    spans = ([(*span, job.task) for span in job.spans] for job in jobs)
    latest: dict[str, int] = {}
    for begin, end, task in heapq.merge(*map(sorted, spans)):
        for other, until in latest.items():
            if other != task and until > begin:
                at_once_ms = (min(end, until) - begin) / 1e6
                yield f"{task} and {other} computed at once for {at_once_ms:.3f} ms"
        latest[task] = max(end, latest.get(task, 0))


def differences(task: dict[str, Any], jobs: Sequence[Job]) -> Iterator[str]:
    """Tell what `tierline run` says of a task in its JSON and the programs' logs do not."""
    own = figures(task["name"], jobs, task["job_time_planned_s"])
    if own.jobs != task["jobs"]:
        yield f"{task['name']}: {task['jobs']} jobs, {own.jobs} by its log"
    for name in ("misses", "response_worst_s", "job_time_worst_s", "overruns"):
        by_log: Between = getattr(own, name)
        if task[name] not in by_log:
            yield f"{task['name']}: {name} {task[name]:g}, {by_log} by its log"
