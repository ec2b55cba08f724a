"""The exact test against plain enumeration, and the traps it must not fall into."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.unit.admission.reference import enumerate_all, random_tasks

from tierline_operator.admission import demand
from tierline_operator.admission.demand import (
    DemandTest,
    SporadicTask,
    cost_ns,
    instant_ns,
    np_edf,
)


def task(
    name: str, period: float, deadline: float | None, cost: float, section: float | None = None
) -> SporadicTask:
    """Times in milliseconds."""
    return SporadicTask(
        name,
        period / 1000,
        None if deadline is None else deadline / 1000,
        cost / 1000,
        None if section is None else section / 1000,
    )


def test_it_agrees_with_enumeration_over_the_hyperperiod() -> None:
    rng = np.random.default_rng(1)
    answers = []
    for _ in range(600):
        tasks = random_tasks(rng, load=float(rng.uniform(0.1, 1.05)))
        expected = enumerate_all(tasks)
        got = np_edf(tasks)
        assert got.ok == expected.ok, tasks
        if got.kind == "late":
            assert got.shortfall_s == pytest.approx(expected.late_s, abs=1e-9)
        answers.append(got.ok)
    assert 120 < sum(answers) < 480


def test_it_agrees_where_the_longest_deadline_is_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    answers = []
    for _ in range(600):
        tasks = random_tasks(rng, load=float(rng.uniform(0.1, 1.05)))
        expected = enumerate_all(tasks)
        due = [task for task in tasks if task.deadline_s is not None]
        longest = max(instant_ns(task.deadline_s or 0) for task in due)
        count = sum(
            (longest - instant_ns(task.deadline_s or 0)) // instant_ns(task.period_s) + 1
            for task in due
        )
        monkeypatch.setattr(demand, "MAX_POINTS", count - 1)
        got = np_edf(tasks)
        if got.kind != "unproven":
            assert got.ok == expected.ok, tasks
            answers.append(got.ok)
    assert 60 < sum(answers) < len(answers) - 60


def test_a_deadline_of_a_day_beside_one_of_a_millisecond_takes_no_time() -> None:
    day = 24 * 3600 * 1000
    for section, ok in ((0.9, True), (0.91, False)):
        tasks = [task("camera", 1, 1, 0.1), task("report", day, day, 60_000, section)]
        verdict = np_edf(tasks)
        assert verdict.ok is ok
        assert ok or (verdict.critical_time_s, verdict.blocker) == (0.001, 1)
    assert np_edf([task("camera", 1, 1, 1), task("report", day, day, 1, 0)]).kind == "overload"


def test_t1_blocking_is_part_of_the_demand() -> None:
    tasks = [task("control", 20, 10, 4), task("model", 100, 100, 30)]
    verdict = np_edf(tasks)

    assert enumerate_all(tasks, blocking=False).ok  # utilisation 0.5 and preemptive EDF are fine
    assert not verdict.ok
    assert (verdict.critical_time_s, verdict.blocker) == (0.01, 1)
    assert verdict.shortfall_s == pytest.approx(0.024)
    assert verdict.victims == (0,)


def test_t7_a_dip_of_the_blocking_term_hides_no_late_window() -> None:
    # Walking t := h(t) + B(t) downwards from the far end as if it were monotone jumps over t = 10.
    tasks = [task("a", 200, 10, 4), task("b", 200, 40, 20), task("c", 200, 100, 8)]
    test = DemandTest([200] * 3, [10, 40, 100])

    def whole(t: int) -> int:
        due = test.jobs_due(t)
        blocking = max((q for d, q in ((10, 4), (40, 20), (100, 8)) if d > t), default=0)
        return sum(n * c for n, c in zip(due, (4, 20, 8), strict=True)) + blocking

    t, monotone_says_ok = 100, True
    while whole(t) > 10 and monotone_says_ok:
        monotone_says_ok = whole(t) <= t
        step = whole(t) if whole(t) < t else max((d for d in (10, 40) if d < t), default=0)
        t = max(d for d in (0, 10, 40, 100) if d <= step)
        if t <= 10:
            break
    assert monotone_says_ok
    assert whole(10) == 24

    verdict = np_edf(tasks)
    assert not verdict.ok
    assert (verdict.critical_time_s, verdict.blocker) == (0.01, 1)


def test_t10_a_later_job_can_be_the_one_that_is_late() -> None:
    tasks = [task("a", 45, 31, 9), task("b", 25, 25, 15), task("c", 44, 32, 7)]
    verdict = np_edf(tasks)
    assert verdict.kind == "late"
    assert verdict.critical_time_s == pytest.approx(0.076)  # the second jobs of a and c
    assert verdict.victims == (0, 2)

    test = DemandTest([45, 25, 44], [31, 25, 32])
    costs = (9, 15, 7)
    for first in (31, 25, 32):
        demand = sum(n * c for n, c in zip(test.jobs_due(first), costs, strict=True))
        blocking = max(
            (c for d, c in zip((31, 25, 32), costs, strict=True) if d > first), default=0
        )
        assert demand + blocking <= first  # looking at first jobs only would accept


@pytest.mark.parametrize(
    ("blocker_deadline", "holds"), [(10.0, True), (10.000001, False)], ids=["equal", "later"]
)
def test_t12_a_blocker_counts_as_soon_as_its_deadline_is_later(
    blocker_deadline: float, holds: bool
) -> None:
    tasks = [task("a", 40, 10, 5), task("b", 40, blocker_deadline, 5.000001)]
    shorter = [task("a", 40, 10, 5), task("b", 40, blocker_deadline, 5)]
    assert np_edf(shorter).ok  # 5 + 5 fit into 10 exactly: a tie is no miss
    assert not np_edf(tasks).ok
    verdict = np_edf([task("a", 40, 10, 2), task("b", 40, blocker_deadline, 8)])
    assert verdict.ok
    assert (verdict.blocker is None) == holds


def test_t12_time_is_rounded_to_the_safe_side() -> None:
    assert cost_ns(0.1 + 0.2) == 300_000_000
    assert instant_ns(0.1 + 0.2) == 300_000_000
    assert cost_ns(1.0000000004) == 1_000_000_001
    assert instant_ns(0.9999999996) == 999_999_999
    assert np_edf([task("a", 10, 10, 10)]).ok
    assert not np_edf([task("a", 10, 10, 10.0000001)]).ok


def test_overload_is_said_to_be_overload() -> None:
    verdict = np_edf([task("a", 10, 10, 6), task("b", 10, 10, 5)])
    assert (verdict.ok, verdict.kind, verdict.shortfall_s) == (False, "overload", math.inf)
    assert verdict.utilisation == pytest.approx(1.1)


def test_a_full_device_with_incommensurate_periods_is_not_claimed_to_hold() -> None:
    first, second = 10.000001, 13.000003
    tasks = [task("a", first, 8, first / 2), task("b", second, 12, second / 2 - 1e-6)]
    assert np_edf(tasks).kind in {"late", "overload", "unproven"}


def test_a_task_without_a_deadline_only_blocks() -> None:
    hard = task("a", 20, 10, 6)
    assert np_edf([hard, task("idle", 5, None, 4)]).ok
    refused = np_edf([hard, task("idle", 5, None, 4.5)])
    assert (refused.kind, refused.blocker) == ("late", 1)
    assert np_edf([hard, task("idle", 5, None, 40, section=4)]).ok


def test_a_background_blocker_counts_beyond_the_longest_deadline() -> None:
    tasks = [task("a", 14, 14, 5), task("b", 28, 27, 7), task("c", 22, 22, 7)]
    blocked = [*tasks, task("idle", 1, None, 5)]
    assert np_edf(tasks).ok
    verdict = np_edf(blocked)
    assert (verdict.kind, verdict.blocker) == ("late", 3)
    assert verdict.critical_time_s == pytest.approx(0.028)  # no deadline of a first job
    assert not enumerate_all(blocked).ok


def test_shorter_sections_admit_more() -> None:
    tasks = [task("control", 20, 10, 4), task("model", 100, 100, 30, section=5)]
    assert np_edf(tasks).ok


def test_no_tasks_hold() -> None:
    assert np_edf([]).ok


@pytest.mark.parametrize(("period", "deadline"), [(0, 5), (5, 0)])
def test_times_must_be_positive(period: float, deadline: float) -> None:
    with pytest.raises(ValueError, match="not positive"):
        np_edf([task("a", period, deadline, 1)])
