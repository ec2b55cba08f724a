"""What a task costs others beyond its plan is no more than its share, and what a job may owe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.excess import Excess

FREE_NS = 1_000
NEVER = 0


def test_what_is_owed_is_paid_by_the_share() -> None:
    excess = Excess()
    excess.costs(0, 3 * FREE_NS, 0.25)
    assert excess.throttled_ns(0, FREE_NS, 0.25) == 8 * FREE_NS
    assert excess.throttled_ns(6 * FREE_NS, FREE_NS, 0.25) == 2 * FREE_NS
    assert excess.throttled_ns(8 * FREE_NS, FREE_NS, 0.25) == NEVER


def test_a_task_that_costs_nothing_is_never_throttled() -> None:
    excess = Excess()
    for now in range(0, 100 * FREE_NS, FREE_NS):
        assert excess.throttled_ns(now, FREE_NS, 0.0) == NEVER
        excess.costs(now, 0, 0.0)


def test_one_without_a_share_pays_some_time() -> None:
    excess = Excess()
    excess.costs(0, 2 * FREE_NS, 0.0)
    assert 0 < excess.throttled_ns(0, FREE_NS, 0.0) <= 100 * FREE_NS


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 5 * FREE_NS), st.integers(0, FREE_NS)), min_size=1, max_size=60
    ),
    share=st.floats(0.01, 1.0),
)
def test_in_any_window_others_lose_no_more_than_the_theorem_says(
    jobs: list[tuple[int, int]], share: float
) -> None:
    """`jobs`: how long the task waits before each, and what that costs others at its end."""
    excess, now, seen = Excess(), 0, []
    for pause, cost in jobs:
        now += pause
        now += excess.throttled_ns(now, FREE_NS, share)
        assert excess.throttled_ns(now, FREE_NS, share) == NEVER
        begins, now = now, now + cost
        excess.costs(now, cost, share)
        seen.append((begins, now, cost))
    most = max(cost for _, cost in jobs)
    for first, (begins, _, _) in enumerate(seen):
        lost = 0
        for _, ends, cost in seen[first:]:
            lost += cost
            assert lost <= FREE_NS + most + share * (ends - begins) + 1e-6
