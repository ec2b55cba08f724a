"""How often what kube-scheduler gives back is tried again, and what a task may ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tierline_operator.cluster.returned import FIRST_S, LONGEST_S, TRIAL_S, Returned
from tierline_operator.controller.allowance import BURST, PER_SECOND, Allowance
from tierline_operator.placement.books.seats import ClaimKey, TaskKey

CLAIM = ClaimKey("default", "c")
START = datetime(2026, 11, 21, tzinfo=UTC)


def test_a_node_is_tried_again_ever_more_seldom() -> None:
    returned, now, waited = Returned(), START, []
    for times in range(1, 10):
        returned.note(CLAIM, "a")
        changed, until = returned.turn(now)
        assert changed == {CLAIM}
        assert (returned.barred(CLAIM), returned.times(CLAIM)) == (("a",), times)
        assert until is not None
        waited.append((until - now).total_seconds())
        assert returned.turn(until - timedelta(seconds=1)) == (set(), until)
        assert returned.turn(until) == ({CLAIM}, None)
        assert returned.barred(CLAIM) == ()
        assert returned.nodes(CLAIM) == ("a",), "that it is tried again is no news"
        now = until
    assert waited[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waited[-1] == LONGEST_S


@given(st.integers(1, 40), st.integers(1, 4))
def test_a_pod_that_fits_nowhere_costs_no_more_on_many_nodes(nodes: int, hours: int) -> None:
    """After each node was tried once, by the tries of one node."""
    returned, now, names = Returned(), START, [f"n{i}" for i in range(nodes)]
    tried: list[str] = []
    while now < START + timedelta(hours=hours):
        _, until = returned.turn(now)
        free = [name for name in names if name not in returned.barred(CLAIM)]
        if not free:
            assert until is not None
            now = until
            continue
        tried.append(free[0])
        returned.place(CLAIM)
        returned.turn(now)
        returned.note(CLAIM, free[0])
    assert tried[:nodes] == names
    assert tried[nodes : 2 * nodes] == names[: len(tried) - nodes], "no node is forgotten"
    assert len(tried) <= nodes + 4 + hours * 3600 / LONGEST_S


def test_a_place_is_news_when_its_pod_is_bound_or_it_was_kept_for_a_while() -> None:
    returned = Returned()
    returned.place(CLAIM)
    assert returned.turn(START) == (set(), None)
    returned.note(CLAIM, "a")
    returned.turn(START)
    returned.place(CLAIM)
    kept = START + timedelta(seconds=TRIAL_S)
    assert returned.turn(START) == (set(), kept)
    assert returned.nodes(CLAIM) == ("a",)
    assert returned.turn(kept) == ({CLAIM}, None)
    assert returned.nodes(CLAIM) == ()

    returned.note(CLAIM, "b")
    returned.turn(kept)
    assert returned.nodes(CLAIM) == ("a", "b")
    returned.forget(CLAIM)
    assert returned.nodes(CLAIM) == ()


def test_nothing_is_remembered_of_a_claim_that_is_gone() -> None:
    returned = Returned()
    returned.note(CLAIM, "a")
    returned.forget(CLAIM)
    assert returned.turn(START) == (set(), None)
    returned.note(CLAIM, "a")
    returned.turn(START)
    returned.forget(CLAIM)
    assert returned.barred(CLAIM) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=400), st.integers(1, 20))
def test_a_task_never_gets_more_than_its_allowance(pauses: list[float], at_once: int) -> None:
    """A task that asks whenever it need not wait gets at most a turn's requests above it."""
    allowance, key, now, made = Allowance(), TaskKey("default", "m"), 0.0, 0
    for pause in pauses:
        now += pause
        if allowance.wait_s(key, now):
            continue
        with allowance.paying(key):
            for _ in range(at_once):
                allowance.charge(now)
        made += at_once
        assert made <= BURST + PER_SECOND * now + at_once
    assert allowance.wait_s(TaskKey("default", "other"), now) == 0


def test_who_waited_has_enough_again() -> None:
    allowance, key = Allowance(), TaskKey("default", "m")
    with allowance.paying(key):
        for _ in range(int(BURST)):
            allowance.charge(0)
    wait_s = allowance.wait_s(key, 0)
    assert wait_s > 1
    assert allowance.wait_s(key, wait_s) == 0
    allowance.forget(1e6)
    assert allowance.wait_s(key, 1e6) == 0
