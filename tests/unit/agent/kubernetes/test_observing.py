"""Sums of what pods did, also over a restart of the agent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tierline_agent.kubernetes.observing import Observation
from tierline_api.objects.memtask_status import Observed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def record(
    response_ms: int, *, missed: bool = False, warmup: bool = False, overran_ms: int = 0
) -> dict[str, Any]:
    return {
        "release_ns": 0,
        "end_ns": response_ms * 10**6,
        "missed": missed,
        "warmup": warmup,
        "overrun_ns": overran_ms * 10**6,
        "streamed_bytes": 100,
    }


def test_jobs_are_summed_and_warm_up_is_not() -> None:
    seen = Observation(None)
    seen.add(record(500, warmup=True))
    for response_ms in range(1, 101):
        seen.add(record(response_ms, missed=response_ms == 100))

    assert seen.observed(NOW) == Observed(
        jobs=100,
        misses=1,
        response_time_p50_s=0.05,
        response_time_p99_s=0.099,
        response_time_worst_s=0.1,
        streamed_bytes_per_job=100,
        last_updated=NOW,
    )


def test_steps_are_told_as_such_and_nobody_misses_one() -> None:
    seen = Observation(Observed(steps=40), trains=True)
    for step_ms in (80, 90, 100):
        seen.add(record(10, warmup=True))  # a row of its sections
        seen.add(record(step_ms))
    told = seen.observed(NOW)
    assert (told.steps, told.jobs, told.misses) == (43, 0, 0)
    assert told.response_time_p50_s == 0.09


def test_nothing_that_was_reported_is_lost() -> None:
    before = Observed(
        jobs=10,
        misses=2,
        response_time_p50_s=0.3,
        response_time_p99_s=0.4,
        response_time_worst_s=0.5,
        streamed_bytes_per_job=300,
    )
    seen = Observation(before)
    assert seen.observed(NOW) == before.model_copy(update={"last_updated": NOW})

    seen.add(record(20))
    after = seen.observed(NOW)
    assert (after.jobs, after.misses, after.response_time_worst_s) == (11, 2, 0.5)
    assert after.response_time_p50_s == 0.02
    assert after.streamed_bytes_per_job == 3100 // 11


def test_over_runs_are_told_by_what_two_of_the_last_jobs_took() -> None:
    seen = Observation(None)
    seen.add(record(90, overran_ms=80))
    seen.add(record(20))
    assert seen.observed(NOW).overruns == 1
    assert seen.observed(NOW).overrun_job_time_s is None, "one may have been held up by anything"
    seen.add(record(50, overran_ms=40))
    seen.add(record(60, overran_ms=30))
    assert seen.observed(NOW).overruns == 3
    assert seen.observed(NOW).overrun_job_time_s == 0.04

    # A restarted agent goes on from there, until it has seen as many jobs itself.
    again = Observation(seen.observed(NOW))
    again.add(record(20))
    assert (again.overruns, again.observed(NOW).overrun_job_time_s) == (3, 0.04)
    for _ in range(1023):
        again.add(record(20))
    assert (again.overruns, again.observed(NOW).overrun_job_time_s) == (3, None)
