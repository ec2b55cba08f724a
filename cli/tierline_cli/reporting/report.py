"""The sentences about a finished run, next to its table: one for each cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.realtime import Criticality
from tierline_cli.reporting.remeasured import JobTimes
from tierline_cli.reporting.results import TaskResult
from tierline_cli.reporting.verdicts import Outputs, Verdict
from tierline_operator.planning.answer import Admitted, Infeasible


@dataclass(frozen=True)
class TaskReport:
    """The report of one task at the end."""

    task: MemTask
    result: TaskResult
    outputs: Outputs
    times: JobTimes
    last_words: str
    """The last words of its program; asked for where it did no job."""
    failed_jobs: int = 0
    """That failed in Tierline's code, at least."""
    failure: str = ""
    """Why the last of them did."""

    @property
    def promise_broken(self) -> bool:
        """A Hard deadline was missed, an output is wrong, or a job failed in Tierline's code."""
        return self.result.late or self.outputs.verdict is Verdict.DIFFERENT or self.failed_jobs > 0


def sentences(reports: Sequence[TaskReport], snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Yield what went otherwise than planned, what matters most first."""
    for one in reports:
        if not one.result.jobs:
            yield (
                f"{one.task.name}: none of its jobs ended, so the run failed; its program's last "
                f"words: {one.last_words}"
            )
        if one.failed_jobs:
            yield (
                f"{one.task.name}: at least {one.failed_jobs} more of its jobs failed in "
                f"Tierline's code, and none of those is counted above: {one.failure}"
            )
        if one.result.unanswered and one.result.jobs:
            yield _unanswered(one.result)
    yield from filter(None, (_outputs(one) for one in reports))
    for one in reports:
        soft = one.task.spec.realtime.criticality is Criticality.SOFT  # planned by the mean
        if one.times.overruns and not soft:
            yield one.times.sentence(one.task)
        if one.times.memory_overruns:
            yield one.times.memory_sentence(one.task)
    yield from _bounds(reports, snapshot)
    yield from _memory(snapshot)


def _unanswered(result: TaskResult) -> str:
    return (
        f"{result.name}: {result.unanswered} of its {result.misses} misses are releases for which "
        "no job began: its program was not there, not ready, or went on to a later release"
    )


def _outputs(one: TaskReport) -> str:
    seen = one.outputs
    if seen.verdict is Verdict.DIFFERENT:
        return (
            f"{one.task.name}: outputs differ from those without Tierline, which two processes "
            "agreed on; please report it with its program"
        )
    if not seen.why or not one.result.jobs:
        return ""
    part = "none" if not seen.compared else f"{seen.compared} of {seen.jobs}"
    return f"{one.task.name}: of its outputs {part} could be compared: {seen.why}"


def _bounds(reports: Sequence[TaskReport], snapshot: Mapping[str, Any]) -> Iterator[str]:
    exceeded = [one.result for one in reports if one.result.bound_exceeded]
    if not exceeded:
        return
    which = ", ".join(
        f"{one.name} ({one.response_worst_s * 1e3:.1f} ms, "
        f"{(one.predicted_worst_s or 0) * 1e3:.1f} proven)"
        for one in exceeded
    )
    late = [one.task.name for one in reports if one.times.overruns]
    said = {
        task["name"]: {notice["kind"] for notice in task["notices"]} for task in snapshot["tasks"]
    }
    broken = {one.name for one in exceeded}
    often = [name for name, kinds in said.items() if "too-often" in kinds and name in broken]
    starting = [name for name, kinds in said.items() if "late-first" in kinds]
    causes = []
    if starting:
        causes.append(
            f"{' and '.join(starting)} kept others waiting in first jobs, or others without rank, "
            "for which nothing or less was planned"
        )
    if often:
        causes.append(
            f"{' and '.join(often)} released jobs more often than planned, "
            "which waited until their time had come"
        )
    if late:
        causes.append(f"jobs of {' and '.join(late)} had the device for longer than planned")
    if not causes:
        causes.append(
            "no job had the device for longer than planned, so something took time between a "
            "release and its job's begin: the program's own preparations, or other load"
        )
    yield f"the proven bound was exceeded by {which}: {'; '.join(causes)}"


def _memory(snapshot: Mapping[str, Any]) -> Iterator[str]:
    limit = snapshot["fast_limit_bytes"]
    began = snapshot["fast_start_peak_bytes"] - limit
    if began > 0:
        yield (
            f"while programs began, with weights in memory of their own, {began / 2**20:,.1f} MiB "
            "more than the fast memory were in use: leave so much of the GPU outside of it"
        )
    excess = snapshot["fast_peak_bytes"] - limit
    if excess > 0:
        yield (
            f"fast memory was exceeded by {excess / 2**20:,.1f} MiB: programs took more than was "
            "planned for them; give --fast-memory that much more, or profile the tasks again"
        )


def again_sentence(answer: Admitted | Infeasible) -> str:
    """Admission's answer on the set when it is planned by what jobs took."""
    start = "planned again by what these jobs took, the tasks are "
    if isinstance(answer, Infeasible):
        return f"{start}not admitted: {answer.sentence}"
    return f"{start}admitted: their deadlines hold with it as well"


def as_json(report: TaskReport, told: Mapping[str, Any]) -> dict[str, Any]:
    """One task of the JSON object; `told` is its part of the agent's snapshot."""
    result, seen = report.result, report.times
    return {
        **result.as_json(),
        "promise_broken": report.promise_broken,
        "outputs": report.outputs.as_json(),
        "failed_jobs": report.failed_jobs,
        "overruns": seen.overruns,
        "job_time_worst_s": seen.worst_s,
        "job_time_planned_s": seen.planned_s,
        "memory_overruns": seen.memory_overruns,
        "workspace_peak_bytes": seen.workspace_peak_bytes,
        "workspace_planned_bytes": seen.workspace_planned_bytes,
        "notices": told["notices"],
    }
