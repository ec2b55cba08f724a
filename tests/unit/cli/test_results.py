"""Counting: what jobs amount to, and what counts as a broken promise."""

from dataclasses import replace

import pytest

from tierline_api.realtime import Criticality
from tierline_cli.results import (
    JobLog,
    JobRecord,
    TaskPromise,
    outputs_identical,
    percentile,
    releases_until,
    result_of,
    unreferenced_inputs,
)

_MS = 1_000_000
_PROMISE = TaskPromise(
    "vit", period_s=0.1, predicted_worst_s=0.08, compute_only_s=0.03, planned_bytes_per_job=9
)


def job(number: int, end_ms: float, **changes: object) -> JobRecord:
    """A job released at 100 ms * number, with a deadline of 90 ms, that ends `end_ms` later."""
    release_ns = number * 100 * _MS
    values: dict[str, object] = {
        "task": "vit",
        "job": number,
        "release_ns": release_ns,
        "granted_ns": release_ns,
        "end_ns": release_ns + round(end_ms * _MS),
        "deadline_ns": release_ns + 90 * _MS,
        "warmup": False,
        "streamed_bytes": 1000,
        "preemptions": 2,
        "input_digest": "in",
        "output_digest": "out",
    }
    return JobRecord(**{**values, **changes})  # type: ignore[arg-type] # values by name


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([], 0.5, 0.0, id="nothing"),
        pytest.param([3.0], 0.99, 3.0, id="one value is every percentile"),
        pytest.param([4.0, 1.0, 3.0, 2.0], 0.5, 2.0, id="half of four"),
        pytest.param([float(n) for n in range(1, 101)], 0.99, 99.0, id="99 of 100"),
        pytest.param([1.0, 2.0], 1.0, 2.0, id="all: the worst"),
    ],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_responses_are_counted_from_the_release() -> None:
    result = result_of(_PROMISE, [job(0, 40), job(1, 60), job(2, 50)], None, True)
    assert (result.response_p50_s, result.response_worst_s) == (0.05, 0.06)
    assert (result.jobs, result.misses, result.streamed_bytes_per_job) == (3, 0, 1000)
    assert result.preemptions == 6


def test_a_job_that_ends_after_its_deadline_is_a_miss() -> None:
    assert result_of(_PROMISE, [job(0, 90), job(1, 90.001)], None, True).misses == 1


def test_a_release_that_no_job_answered_is_a_miss() -> None:
    assert result_of(_PROMISE, [job(0, 40), job(1, 40)], 5, True).misses == 3


@pytest.mark.parametrize(
    ("criticality", "end_ms", "identical", "broken"),
    [
        pytest.param(Criticality.HARD, 40, True, False, id="in time and right"),
        pytest.param(Criticality.HARD, 91, True, True, id="a Hard one is late"),
        pytest.param(Criticality.SOFT, 91, True, False, id="a Soft one is late"),
        pytest.param(Criticality.BEST_EFFORT, 91, True, False, id="a BestEffort one is late"),
        pytest.param(Criticality.SOFT, 40, False, True, id="a wrong output"),
        pytest.param(Criticality.HARD, 40, None, False, id="nothing to compare"),
    ],
)
def test_what_breaks_a_promise(
    criticality: Criticality, end_ms: float, identical: bool | None, broken: bool
) -> None:
    promise = replace(_PROMISE, criticality=criticality)
    result = result_of(promise, [job(0, end_ms)], None, identical)
    assert result.misses == (end_ms > 90)
    assert result.promise_broken is broken


def test_warm_up_jobs_are_not_counted() -> None:
    log = JobLog()
    log.add([job(0, 500, warmup=True), job(1, 40)])
    assert [record.job for record in log.of("vit")] == [1]
    assert not log.of("resnet")


@pytest.mark.parametrize(
    ("span_s", "period_s", "expected"),
    [
        pytest.param(1.0, 0.1, 10, id="the end itself is no release"),
        pytest.param(1.05, 0.1, 11, id="a last period that is cut short"),
        pytest.param(0.01, 0.1, 1, id="the first release is at 0"),
    ],
)
def test_releases_until(span_s: float, period_s: float, expected: int) -> None:
    assert releases_until(span_s, period_s) == expected


@pytest.mark.parametrize(
    ("changes", "reference", "expected"),
    [
        pytest.param({}, {"in": "out"}, True, id="the same output for the same input"),
        pytest.param({}, {"in": "other"}, False, id="another output"),
        pytest.param({}, {}, False, id="no reference for this input"),
        pytest.param({"output_digest": None}, {"in": "out"}, False, id="no output recorded"),
        pytest.param({"input_digest": None}, {"in": "out"}, False, id="no input recorded"),
    ],
)
def test_outputs_identical(
    changes: dict[str, object], reference: dict[str, str], expected: bool
) -> None:
    assert outputs_identical([job(0, 40), job(1, 40, **changes)], reference) is expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([job(0, 40), job(1, 40, output_digest=None)], True, id="the last one"),
        pytest.param([job(0, 40, output_digest=None), job(1, 40)], False, id="an earlier one"),
        pytest.param([job(0, 40), job(1, 40, output_digest="bad")], False, id="one that was told"),
        pytest.param([job(0, 40, output_digest=None)], None, id="the only one"),
    ],
)
def test_a_program_that_is_ended_may_leave_its_last_output_untold(
    records: list[JobRecord], expected: bool | None
) -> None:
    assert outputs_identical(records, {"in": "out"}, cut_short=True) is expected


def test_without_jobs_nothing_was_compared() -> None:
    assert outputs_identical([], {"in": "out"}) is None


def test_inputs_without_a_reference_are_found() -> None:
    jobs = [job(0, 40), job(1, 40, input_digest="new"), job(2, 40, input_digest=None)]
    assert unreferenced_inputs(jobs, {"in": "out"}) == {"new"}
