"""What is told of steps: from the agent's record of the lease, and nothing else."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tierline_api.objects.memtask import MemTask
from tierline_cli.local.place import Place
from tierline_cli.reporting.results import JobRecord
from tierline_cli.reporting.training import (
    Promise,
    TrainingResult,
    training_of,
    training_sentences,
    training_table,
)
from tierline_cli.reporting.verdicts import Outputs, Verdict
from tierline_operator.planning.answer import TaskPlan

_MS = 1_000_000
_PLAN = TaskPlan(
    name="finetune",
    extent_bytes=1 << 20,
    extent_count=0,
    resident_extents=(),
    ring_extents=0,
    workspace_bytes=3 << 20,
    homes=(),
    job_time_s=0.1,
    compute_s=0.1,
    streamed_bytes=0,
    calls=1,
    call_s=0.1,
    between_s=0.0,
    jitter_s=0.0,
    response_s=None,
    first_s=0.02,
)
_COUNTED: dict[str, Any] = {"first_blocked_worst_ns": 15 * _MS, "late_firsts": 0}


def _record(task: str, release_ms: int, begin_ms: int, end_ms: int, **more: Any) -> JobRecord:
    values: dict[str, Any] = {
        "task": task,
        "job": 1,
        "release_ns": release_ms * _MS,
        "granted_ns": begin_ms * _MS,
        "end_ns": end_ms * _MS,
        "deadline_ns": 10**12,
        "warmup": False,
        "streamed_bytes": 0,
        "preemptions": 0,
        "input_digest": None,
        "output_digest": None,
    }
    return JobRecord(**{**values, **more})


def _turn(release_ms: int, begin_ms: int, end_ms: int) -> JobRecord:
    return _record("finetune", release_ms, begin_ms, end_ms, warmup=True)


def _step(release_ms: int, end_ms: int) -> JobRecord:
    return _record("finetune", release_ms, end_ms, end_ms)


_RECORDS = {
    "finetune": [
        *(_turn(0, 0, 30), _turn(0, 50, 70), _step(0, 70)),
        *(_turn(80, 80, 100), _step(80, 100)),
        _turn(100, 100, 110),  # of a step that does not end
    ],
    "vit": [_record("vit", 30, 30, 50)],
}


def _result(records: dict[str, list[JobRecord]] = _RECORDS, **counted: Any) -> TrainingResult:
    span = (10 * _MS, 110 * _MS)
    return training_of(Promise(_PLAN, 0.05), records, {**_COUNTED, **counted}, span)


def test_steps_are_counted_with_their_times_among_the_others() -> None:
    result = _result()
    assert (result.steps, result.step_alone_s, result.step_s) == (2, 0.05, 0.02)
    assert result.memory_bytes == 3 << 20


def test_each_turn_of_a_step_but_its_last_was_given_away() -> None:
    assert _result().yields == 1


def test_idle_time_is_what_the_others_leave_of_the_run() -> None:
    # of 100 ms others have 20; the turns have 20 after the begin, then 20, 20 and 10
    assert _result().idle_used == 70 / 80


def test_a_job_that_was_parked_had_the_device_for_less() -> None:
    parked = [_record("vit", 30, 30, 50, parked_ns=10 * _MS)]
    assert _result({**_RECORDS, "vit": parked}).idle_used == 70 / 90


def _told(result: TrainingResult, outputs: Outputs) -> list[str]:
    return list(training_sentences([result], {"finetune": outputs}, lambda _: "out of data"))


_SAME = Outputs(Verdict.IDENTICAL, 2, 2)


def test_a_run_that_went_as_planned_needs_no_sentence() -> None:
    assert _told(_result(), _SAME) == []


def test_a_run_without_a_step_failed() -> None:
    (sentence,) = _told(_result({}), Outputs(Verdict.NOT_COMPARABLE, why="no job ended"))
    assert sentence.endswith(
        "made no step, so the run failed; its program's last words: out of data"
    )


def test_weights_that_differ_are_told() -> None:
    (sentence,) = _told(_result(), Outputs(Verdict.DIFFERENT, 2, 2))
    assert "weights after a step differ from those without Tierline" in sentence


def test_sections_that_were_longer_than_planned_are_told() -> None:
    late = _result(first_blocked_worst_ns=25 * _MS, late_firsts=3)
    (sentence,) = _told(late, _SAME)
    assert "3 times it kept jobs with deadlines waiting for longer than the 20.0 ms" in sentence
    assert "25.0 ms at worst" in sentence


def test_a_program_that_trains_knows_it_and_its_threads_sleep_soon() -> None:
    spec = {"training": {"steps": 9}, "memory": {"budget": "1Mi"}, "device": {"kind": "cpu"}}
    api = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemTask", "metadata": {"name": "a"}}
    told = Place("cpu").environment(MemTask.from_api({**api, "spec": spec}))
    assert (told["TIERLINE_TRAINING"], told["TIERLINE_TRAINING_STEPS"]) == ("1", "9")
    assert int(told["GOMP_SPINCOUNT"]) < 10_000


def test_the_table_has_a_row_for_each() -> None:
    console = Console(width=200, record=True)
    console.print(training_table([_result()], {"finetune": _SAME}))
    words = console.export_text().split()
    assert words[-15:] == [
        *("finetune", "2", "50.0", "ms", "20.0", "ms", "88%", "1", "15.0", "ms", "20.0", "ms"),
        *("3", "MiB", "identical"),
    ]
