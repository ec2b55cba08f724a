"""The exact test against plain enumeration, and the traps it must not fall into."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from tests.unit.admission.reference import enumerate_all, fine_tasks, random_tasks

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


def random_numbers(rng: np.random.Generator) -> tuple[list[int], ...]:
    """Periods, deadlines on both sides of them, costs and sections (zero and longer, too)."""
    count = int(rng.integers(1, 6))
    grids = ((2, 3, 4, 6, 12), (10, 12, 15, 20, 24, 30), (5, 7, 11), (1, 2, 50, 100), (3, 100, 300))
    grid = grids[rng.integers(len(grids))]
    periods = [int(rng.choice(grid)) for _ in range(count)]
    latest = float(rng.choice([0.7, 1, 3]))
    deadlines = [max(1, int(rng.uniform(0.3, latest) * period)) for period in periods]
    shares = rng.dirichlet(np.ones(count)) * float(rng.choice([0.1, 0.5, 0.9, 1, 1.02]))
    costs = [round(share * period) for share, period in zip(shares, periods, strict=True)]
    whole = [bool(rng.random() < 0.6) for _ in periods]
    sections = [
        c if all_of_it else int(rng.integers(2 * c + 3))
        for c, all_of_it in zip(costs, whole, strict=True)
    ]
    return periods, deadlines, costs, sections


@pytest.mark.parametrize("at_once", [5000, 4, 0], ids=["look", "some of each", "step"])
def test_the_tightest_of_all_windows_is_found(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every deadline of two hyperperiods had been looked at; or a late one, if one is."""
    monkeypatch.setattr(demand, "AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    seen = {"holds": 0, "late": 0, "overload": 0, "unproven": 0}
    for _ in range(300):
        periods, deadlines, costs, sections = random_numbers(rng)
        background = int(rng.choice([0, 0, 0, 3, 8]))
        test = DemandTest(periods, deadlines)
        for _ in range(2):  # the second time with what the first has left

            def late_by(t: int) -> int:
                jobs = zip(test.jobs_due(t), costs, strict=True)  # noqa: B023
                later = [q for q, d in zip(sections, deadlines, strict=True) if d > t]  # noqa: B023
                return sum(n * c for n, c in jobs) + max([background, *later]) - t  # noqa: B023

            common = math.lcm(*periods)
            kind, late, critical, blocker = test.worst(costs, sections, background)
            seen[kind] += 1
            load = sum(c * common // t for c, t in zip(costs, periods, strict=True))
            assert (kind == "overload") == (load > common)
            if kind != "overload":
                until = 2 * (common + max(deadlines))
                due = {
                    t
                    for period, d in zip(periods, deadlines, strict=True)
                    for t in range(d, until, period)
                }
                most = max(map(late_by, due))
                assert (kind == "late") == (most > 0), (periods, deadlines)
                assert late == late_by(critical)
                # Where not all are looked at, the first late one that is met is the answer.
                assert late == most or (at_once < 5000 and 0 < late <= most), (periods, deadlines)
                assert test.victims(critical)
                assert blocker is None or blocker < 0 or deadlines[blocker] > critical
            costs = [max(0, cost - int(rng.integers(2))) for cost in costs]
    assert min(seen["holds"], seen["late"], seen["overload"]) > 30
    assert not seen["unproven"]


@pytest.mark.parametrize("at_once", [5000, 4, 0], ids=["look", "some of each", "step"])
def test_a_load_near_all_of_the_device_is_judged_as_by_enumeration(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "AT_ONCE", at_once)
    monkeypatch.setattr(demand, "_FIRST_STEPS", 5)
    rng = np.random.default_rng(4)
    kinds: list[str] = []
    while len(kinds) < 300:
        tasks = fine_tasks(rng, load=float(rng.choice([1, rng.uniform(0.99, 1.01)])))
        load = sum(Fraction(round(t.cost_s * 1e9), round(t.period_s * 1e9)) for t in tasks)
        if not 0.99 <= load <= 1.01:
            continue
        got = np_edf(tasks)
        assert got.ok == enumerate_all(tasks).ok, tasks
        assert (got.kind == "overload") == (load > 1)
        kinds.append(got.kind)
    assert min(map(kinds.count, ("holds", "late", "overload"))) > 20
    assert "unproven" not in kinds


def test_too_many_steps_lead_to_no_wrong_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "AT_ONCE", 0)
    monkeypatch.setattr(demand, "_MAX_STEPS", 3)
    rng = np.random.default_rng(3)
    kinds = []
    for most in (0, 400_000):
        monkeypatch.setattr(demand, "MAX_POINTS", most)
        for _ in range(300):
            tasks = random_tasks(rng, load=float(rng.uniform(0.1, 1.05)))
            got = np_edf(tasks)
            kinds.append(got.kind)
            assert got.kind == "unproven" or got.ok == enumerate_all(tasks).ok, tasks
    assert 20 < kinds[:300].count("unproven") < 250
    assert "unproven" not in kinds[300:]


DAY = 24 * 3600 * 1000


@pytest.mark.parametrize("cost", [1, 60_000, 3_600_000])
def test_a_deadline_of_a_day_next_to_one_of_a_millisecond_takes_no_time(cost: float) -> None:
    for section, spare in ((0.4, 0.5), (0.9, 0), (0.91, -0.01)):
        tasks = [task("camera", 1, 1, 0.1), *(task("report", DAY, DAY, cost, section),) * 4]
        verdict = np_edf(tasks)
        assert verdict.ok is (spare >= 0)
        assert verdict.shortfall_s == pytest.approx(-spare / 1000, abs=1e-12)
        assert (verdict.critical_time_s, verdict.blocker) == (0.001, 1)
        assert np_edf([*tasks, task("odd", 33.000007, 31, 1e-3)]).ok is (spare >= 0)
    assert np_edf([task("camera", 1, 1, 1), task("report", DAY, DAY, 1, 0)]).kind == "overload"


def test_a_device_that_is_full_for_a_day_is_judged_all_the_same() -> None:
    half = task("half", 1, 1, 0.5)
    verdict = np_edf([half, task("report", DAY, DAY, DAY / 2, 0.5)])
    assert (verdict.ok, verdict.shortfall_s) == (True, 0)
    verdict = np_edf([half, task("report", DAY, DAY - 1, DAY / 2, 0.5)])
    assert verdict.kind == "late"
    assert verdict.critical_time_s == pytest.approx((DAY - 1) / 1000)


def test_what_is_kept_does_not_grow_with_the_deadlines() -> None:
    tracemalloc.start()
    test = DemandTest([10**6, DAY * 10**6], [10**6, DAY * 10**6])
    for cost in (1, 10**9, 10**12, 4 * 10**12):
        assert test.worst([10**5, cost], [10**5, 10**5])[:3] == ("holds", -(8 * 10**5), 10**6)
    assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    tracemalloc.stop()


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
