"""The test for one more task says what the test from scratch says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tierline_operator.admission.demand import DemandTest
from tierline_operator.admission.growth import DemandCurve

MS = 1_000_000


def holds(tasks: list[tuple[int, int, int]], background: int = 0) -> bool:
    test = DemandTest([t for t, _, _ in tasks], [d for _, d, _ in tasks])
    costs = [c for _, _, c in tasks]
    return test.worst(costs, costs, background)[0] == "holds"


def curve_of(tasks: list[tuple[int, int, int]], background: int = 0) -> DemandCurve:
    periods, deadlines, costs = ([task[i] for task in tasks] for i in range(3))
    curve = DemandCurve.of(periods, deadlines, costs, costs, background, 200 * MS)
    assert curve is not None
    return curve


@st.composite
def task(draw: st.DrawFn) -> tuple[int, int, int]:
    period = draw(st.sampled_from([10, 12, 20, 25, 40, 60, 100]))
    deadline = draw(st.integers(period // 2, period))
    return period * MS, deadline * MS, draw(st.integers(1, 4 * MS))


@settings(max_examples=300, deadline=None)
@given(st.lists(task(), max_size=6), task(), st.sampled_from([0, 0, MS, 3 * MS]))
def test_the_largest_cost_is_the_largest_that_holds(
    tasks: list[tuple[int, int, int]], new: tuple[int, int, int], background: int
) -> None:
    if not holds(tasks, background):
        return
    curve = curve_of(tasks, background)
    period, deadline, _ = new
    most = curve.largest_cost(period, deadline)
    if most >= 1:
        assert holds([*tasks, (period, deadline, most)], background)
    # Short of the horizon it is exact.
    load = sum(c / t for t, _, c in tasks) + max(most, 0) / period
    slack = sum(max(0, t - d) * c / t for t, d, c in [*tasks, (period, deadline, max(most, 0))])
    if most < deadline and load < 0.999 and (background + slack) / (1 - load) < curve.reach * 0.99:
        assert not holds([*tasks, (period, deadline, max(most, 0) + 1)], background)


@settings(max_examples=200, deadline=None)
@given(st.lists(task(), min_size=2, max_size=8))
def test_a_grown_curve_is_the_curve_from_scratch(tasks: list[tuple[int, int, int]]) -> None:
    grown = curve_of([])
    kept: list[tuple[int, int, int]] = []
    for period, deadline, cost in tasks:
        if cost <= grown.largest_cost(period, deadline):
            grown = grown.with_task(period, deadline, cost)
            kept.append((period, deadline, cost))
            assert holds(kept)
    scratch = curve_of(kept)
    shared = min(grown.reach, scratch.reach)
    points = scratch.points[scratch.points <= shared]
    assert list(grown.points[grown.points <= shared]) == list(points)
    assert list(grown.demanded(points)) == list(scratch.demanded(points))
    assert list(grown.blocked(points)) == list(scratch.blocked(points))
    assert grown.largest_cost(60 * MS, 30 * MS) <= 30 * MS
