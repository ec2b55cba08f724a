"""States that last: places kept free for nobody, tasks that never become ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tierline_operator.cluster.lasting import Lasting
from tierline_operator.placement.books.seats import TaskKey

START = datetime(2026, 11, 21, tzinfo=UTC)
A, B = TaskKey("default", "a"), TaskKey("default", "b")


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_who_stays_for_long_is_told_once() -> None:
    lasting: Lasting[TaskKey] = Lasting(10)
    assert lasting.turn({A}, START) == set()
    assert lasting.next == after(10)
    assert lasting.turn({A, B}, after(5)) == set()
    assert lasting.turn({A, B}, after(10)) == {A}
    assert lasting.next == after(15)
    assert lasting.turn({A, B}, after(15)) == {B}
    assert lasting.over == {A, B}
    assert lasting.turn({B}, after(16)) == set()
    assert lasting.over == {B}


def test_who_leaves_or_begins_again_has_all_its_time_again() -> None:
    lasting: Lasting[TaskKey] = Lasting(10)
    lasting.turn({A, B}, START)
    lasting.turn({B}, after(8))
    lasting.again(B)
    assert lasting.turn({A, B}, after(11)) == set()
    assert lasting.turn({A, B}, after(21)) == {A, B}


def test_what_was_written_before_holds_at_once() -> None:
    lasting: Lasting[TaskKey] = Lasting(10)
    lasting.resume(A)
    assert lasting.turn({A, B}, START) == set()
    assert lasting.over == {A}
    assert lasting.next == after(10)


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), max_size=30))
def test_it_agrees_with_a_count_of_seconds(steps: list[tuple[int, bool, bool]]) -> None:
    lasting: Lasting[TaskKey] = Lasting(10)
    now = 0
    since: dict[TaskKey, int] = {}
    for pause, a, b in steps:
        now += pause
        there = {key for key, is_ in ((A, a), (B, b)) if is_}
        since = {key: since.get(key, now) for key in there}
        lasting.turn(there, after(now))
        assert lasting.over == {key for key, at in since.items() if now - at >= 10}
