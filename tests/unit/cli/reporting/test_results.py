"""Counting: what jobs amount to, and what counts as a broken promise."""

from dataclasses import replace

import pytest

from tierline_api.objects.realtime import Criticality
from tierline_cli.reporting.results import (
    JobLog,
    JobRecord,
    TaskPromise,
    percentile,
    releases_until,
    result_of,
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
    result = result_of(_PROMISE, [job(0, 40), job(1, 60), job(2, 50)], None)
    assert (result.response_p50_s, result.response_worst_s) == (0.05, 0.06)
    assert (result.jobs, result.misses, result.streamed_bytes_per_job) == (3, 0, 1000)
    assert result.preemptions == 6


def test_a_job_that_ends_after_its_deadline_is_a_miss() -> None:
    assert result_of(_PROMISE, [job(0, 90), job(1, 90.001)], None).misses == 1


def test_a_release_that_no_job_answered_is_a_miss() -> None:
    result = result_of(_PROMISE, [job(0, 40), job(1, 99)], 5)
    assert (result.misses, result.unanswered) == (4, 3)


def test_two_jobs_of_a_release_answer_one() -> None:
    jobs = [job(0, 40), job(0, 80), job(1, 40), job(1, 80)]
    assert result_of(_PROMISE, jobs, 4).misses == 2


@pytest.mark.parametrize(
    ("criticality", "end_ms", "late"),
    [
        pytest.param(Criticality.HARD, 40, False, id="in time"),
        pytest.param(Criticality.HARD, 91, True, id="a Hard one is late"),
        pytest.param(Criticality.SOFT, 91, False, id="a Soft one is late"),
        pytest.param(Criticality.BEST_EFFORT, 91, False, id="a BestEffort one is late"),
    ],
)
def test_whose_misses_break_a_promise(criticality: Criticality, end_ms: float, late: bool) -> None:
    promise = replace(_PROMISE, criticality=criticality)
    result = result_of(promise, [job(0, end_ms)], None)
    assert result.misses == (end_ms > 90)
    assert result.late is late


@pytest.mark.parametrize(
    ("bound_s", "exceeded"), [(0.08, False), (0.0799, True), (None, False)], ids=str
)
def test_a_bound_is_exceeded_whoever_caused_it(bound_s: float | None, exceeded: bool) -> None:
    promise = replace(_PROMISE, predicted_worst_s=bound_s)
    assert result_of(promise, [job(0, 80)], None).bound_exceeded is exceeded


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
