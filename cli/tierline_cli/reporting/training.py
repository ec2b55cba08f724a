"""Results of the steps of a run, counted from the agent's record of the lease. Pure.

A step is a row of warm-up jobs of one release, its *turns*, and a job that counts. So the agent's
records say when each turn had the device, and nothing here is the word of the program that trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from tierline_cli.reporting.live import outputs_text, shown_size, shown_time
from tierline_cli.reporting.narrow import Fitted
from tierline_cli.reporting.results import JobRecord, percentile
from tierline_cli.reporting.verdicts import Outputs, Verdict
from tierline_operator.planning.answer import TaskPlan

_NS = 1e9
_COLUMNS = (
    "steps",
    "step alone",
    "in the gaps",
    "of the idle time",
    "yields",
    "worst",
    "bound",
    "memory",
)
Span = tuple[int, int]
"""From when to when, CLOCK_MONOTONIC nanoseconds."""


@dataclass(frozen=True)
class TrainingResult:
    """The numbers of one task that trains."""

    name: str
    steps: int
    step_alone_s: float
    """Half of the steps took no longer without Tierline on the quiet device."""
    step_s: float
    """The same among the others."""
    idle_used: float | None
    """Its share of the time in which no other task had the device; None before there is such."""
    yields: int
    """How often a step gave the device away."""
    yield_worst_s: float
    """How long it kept a job with a deadline waiting, at worst."""
    yield_planned_s: float
    late_yields: int
    """How often that was longer than planned."""
    memory_bytes: int
    """Planned: what stays from step to step, and what a step allocates."""

    def as_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


@dataclass(frozen=True)
class Promise:
    """Admission's plan for a task that trains, and its measurements without Tierline."""

    plan: TaskPlan
    step_alone_s: float


def training_of(
    promise: Promise,
    records: Mapping[str, Sequence[JobRecord]],
    counted: Mapping[str, Any],
    span: Span | None,
) -> TrainingResult:
    """Count one task's steps. `records` are of all tasks, warm-up jobs included.

    `counted` is the task's part of the agent's snapshot; `span` is what the idle time is of.
    """
    name = promise.plan.name
    own = records.get(name, ())
    steps = [one for one in own if not one.warmup]
    ended = {one.release_ns for one in steps}
    turns = Counter(one.release_ns for one in own if one.warmup)
    return TrainingResult(
        name=name,
        steps=len(steps),
        step_alone_s=promise.step_alone_s,
        step_s=percentile([one.response_s for one in steps], 0.5),
        idle_used=None if span is None else _share(name, records, span),
        yields=sum(times - 1 for release, times in turns.items() if release in ended),
        yield_worst_s=counted["first_blocked_worst_ns"] / _NS,
        yield_planned_s=promise.plan.first_s,
        late_yields=counted["late_firsts"],
        memory_bytes=promise.plan.workspace_bytes,
    )


def _share(name: str, records: Mapping[str, Sequence[JobRecord]], span: Span) -> float | None:
    """The part of the time without others' jobs in which the task had the device."""
    begin_ns, end_ns = span
    others_ns = sum(
        _inside(one, span) for task, some in records.items() if task != name for one in some
    )
    own_ns = sum(_inside(one, span) for one in records.get(name, ()))
    idle_ns = end_ns - begin_ns - others_ns
    return min(1.0, own_ns / idle_ns) if idle_ns > 0 else None


def _inside(record: JobRecord, span: Span) -> int:
    """How long it had the device in that time. Where it gave it away is not known."""
    begin_ns, end_ns = span
    length_ns = min(record.end_ns, end_ns) - max(record.granted_ns, begin_ns)
    whole_ns = record.end_ns - record.granted_ns
    if length_ns <= 0 or whole_ns <= 0:
        return 0
    return round(length_ns * (whole_ns - record.parked_ns) / whole_ns)


def training_table(
    results: Sequence[TrainingResult], outputs: Mapping[str, Outputs] | None = None
) -> Table:
    """One row a task; `weights` are compared after each step, or after some."""
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("training", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("weights", no_wrap=True)
    for one in results:
        late = one.yield_worst_s > one.yield_planned_s
        table.add_row(
            one.name,
            str(one.steps),
            shown_time(one.step_alone_s),
            shown_time(one.step_s),
            "-" if one.idle_used is None else f"{one.idle_used:.0%}",
            str(one.yields),
            Text(shown_time(one.yield_worst_s), style="bold red" if late else ""),
            shown_time(one.yield_planned_s),
            shown_size(one.memory_bytes),
            outputs_text(None if outputs is None else outputs[one.name]),
        )
    return table


def training_rows(
    results: Sequence[TrainingResult], outputs: Mapping[str, Outputs] | None
) -> list[Fitted]:
    """The table, if a task trains."""
    return [Fitted(training_table(results, outputs))] if results else []


def training_sentences(
    results: Iterable[TrainingResult], outputs: Mapping[str, Outputs], words: Callable[[str], str]
) -> Iterator[str]:
    """Yield what went otherwise than planned; `words` are what a task's program said last."""
    for one in results:
        if not one.steps:
            yield (
                f"{one.name}: it made no step, so the run failed; its program's last words: "
                f"{words(one.name)}"
            )
        if outputs[one.name].verdict is Verdict.DIFFERENT:
            yield (
                f"{one.name}: weights after a step differ from those without Tierline, which two "
                "processes agreed on; please report it with its program"
            )
        elif one.steps and outputs[one.name].why:
            yield (
                f"{one.name}: weights were compared after {outputs[one.name].compared} of "
                f"{outputs[one.name].jobs} steps: {outputs[one.name].why}"
            )
        if one.late_yields:
            yield (
                f"{one.name}: {one.late_yields} times it kept jobs with deadlines waiting for "
                f"longer than the {one.yield_planned_s * 1e3:.1f} ms that were planned, "
                f"{one.yield_worst_s * 1e3:.1f} ms at worst; what was proven is not proven for "
                "those: measure it again, on a machine that is quiet, or give --margin"
            )
