"""What the jobs of a run amounted to: counted from the agent's job records.

Pure: takes records and references, returns numbers. A release that no job answered is a miss, too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierline_api.realtime import Criticality

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
    """What admission promised a task, and what was measured without Tierline."""

    name: str
    period_s: float
    predicted_worst_s: float | None
    """None where nothing was promised (BestEffort)."""
    compute_only_s: float
    planned_bytes_per_job: int
    """What the plan streams in each job."""
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
    outputs_identical: bool | None

    @property
    def promise_broken(self) -> bool:
        """A Hard deadline was missed, or an output is wrong. Other tasks may be late."""
        late = self.misses > 0 and self.criticality is Criticality.HARD
        return late or self.outputs_identical is False


@dataclass
class JobLog:
    """The counted jobs of a run, by task."""

    _jobs: dict[str, list[JobRecord]] = field(default_factory=dict)

    def add(self, records: Iterable[JobRecord]) -> None:
        """Take more records; warm-up jobs are left out."""
        for record in records:
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
    identical: bool | None,
) -> TaskResult:
    """Count one task's jobs among `releases` (None where the program has a loop of its own)."""
    responses = [job.response_s for job in jobs]
    unanswered = max(0, releases - len(jobs)) if releases is not None else 0
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
        outputs_identical=identical,
    )


def unreferenced_inputs(jobs: Sequence[JobRecord], reference: Mapping[str, str]) -> set[str]:
    """Inputs whose output without Tierline is not known yet."""
    return {job.input_digest for job in jobs if job.input_digest} - set(reference)


def outputs_identical(
    jobs: Sequence[JobRecord], reference: Mapping[str, str], *, cut_short: bool = False
) -> bool | None:
    """Whether every job's output equals the one without Tierline; None without a single job.

    A job whose output was not recorded, or whose input has no reference, counts as different; but
    not the last one of a program that was ended (`cut_short`): that was between the two.
    """
    if cut_short and jobs and jobs[-1].output_digest is None:
        jobs = jobs[:-1]
    if not jobs:
        return None
    return all(
        job.input_digest is not None
        and job.output_digest is not None
        and reference.get(job.input_digest) == job.output_digest
        for job in jobs
    )


def releases_until(span_s: float, period_s: float) -> int:
    """How many releases a period makes in `span_s` seconds, the first at 0, the end excluded."""
    return math.ceil(span_s / period_s - 1e-9)
