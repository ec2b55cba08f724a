"""Results of the jobs of a run, counted from the agent's job records.

Pure: takes records, returns numbers. A release that no job answered is a miss, too. What became of
their outputs is told by verdicts.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tierline_api.objects.realtime import Criticality

_NS = 1e9


@dataclass(frozen=True)
class JobRecord:
    """One finished job, as the agent recorded it. Times in nanoseconds of CLOCK_MONOTONIC."""

    task: str
    job: int
    release_ns: int
    granted_ns: int
    end_ns: int
    deadline_ns: int
    warmup: bool
    streamed_bytes: int
    preemptions: int
    input_digest: str | None
    output_digest: str | None
    parked_ns: int = 0
    """How long it was without the device."""

    @property
    def missed(self) -> bool:
        """Whether it ended after its deadline."""
        return self.end_ns > self.deadline_ns

    @property
    def response_s(self) -> float:
        """Seconds from its release to its end."""
        return (self.end_ns - self.release_ns) / _NS

    @classmethod
    def from_admin(cls, record: Mapping[str, Any]) -> "JobRecord":
        """From one entry of the admin socket's `jobs` answer."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class TaskPromise:
    """Admission's promise to a task, and its measurements without Tierline."""

    name: str
    period_s: float
    predicted_worst_s: float | None
    """None where nothing was promised (BestEffort)."""
    compute_only_s: float
    planned_bytes_per_job: int
    """Bytes that the plan streams in each job."""
    preemptible: bool = False
    """Whether its jobs give the device away where a layer ends."""
    criticality: Criticality = Criticality.HARD


@dataclass(frozen=True)
class TaskResult:
    """The numbers of one task."""

    name: str
    criticality: Criticality
    period_s: float
    jobs: int
    misses: int
    response_p50_s: float
    response_p99_s: float
    response_worst_s: float
    predicted_worst_s: float | None
    compute_only_s: float
    streamed_bytes_per_job: int
    planned_bytes_per_job: int
    preemptible: bool
    preemptions: int
    unanswered: int = 0
    """Of the misses: releases for which no job began."""

    @property
    def late(self) -> bool:
        """Whether a Hard deadline was missed. Other tasks may be late."""
        return self.misses > 0 and self.criticality is Criticality.HARD

    @property
    def bound_exceeded(self) -> bool:
        """Whether a job took longer from its release than was proven."""
        bound_s = self.predicted_worst_s
        return bound_s is not None and self.response_worst_s > bound_s

    def as_json(self) -> dict[str, Any]:
        """All of it by name."""
        return {**asdict(self), "bound_exceeded": self.bound_exceeded}


@dataclass
class JobLog:
    """The jobs of a run, by task."""

    all: dict[str, list[JobRecord]] = field(default_factory=dict)
    """Warm-up jobs included."""
    _jobs: dict[str, list[JobRecord]] = field(default_factory=dict)

    def add(self, records: Iterable[JobRecord]) -> None:
        """Take more records."""
        for record in records:
            self.all.setdefault(record.task, []).append(record)
            if not record.warmup:
                self._jobs.setdefault(record.task, []).append(record)

    def of(self, task: str) -> Sequence[JobRecord]:
        """The counted jobs of a task, in the order in which they ended."""
        return self._jobs.get(task, ())


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1] of the values do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def result_of(
    promise: TaskPromise,
    jobs: Sequence[JobRecord],
    releases: int | None,
) -> TaskResult:
    """Count one task's jobs among `releases` (None where the program has a loop of its own)."""
    responses = [job.response_s for job in jobs]
    answered = len({job.release_ns for job in jobs})
    unanswered = max(0, releases - answered) if releases is not None else 0
    return TaskResult(
        name=promise.name,
        criticality=promise.criticality,
        period_s=promise.period_s,
        jobs=len(jobs),
        misses=sum(job.missed for job in jobs) + unanswered,
        response_p50_s=percentile(responses, 0.5),
        response_p99_s=percentile(responses, 0.99),
        response_worst_s=max(responses, default=0.0),
        predicted_worst_s=promise.predicted_worst_s,
        compute_only_s=promise.compute_only_s,
        streamed_bytes_per_job=(
            sum(job.streamed_bytes for job in jobs) // len(jobs) if jobs else 0
        ),
        planned_bytes_per_job=promise.planned_bytes_per_job,
        preemptible=promise.preemptible,
        preemptions=sum(job.preemptions for job in jobs),
        unanswered=unanswered,
    )


def releases_until(span_s: float, period_s: float) -> int:
    """How many releases a period makes in `span_s` seconds, the first at 0, the end excluded."""
    return math.ceil(span_s / period_s - 1e-9)
