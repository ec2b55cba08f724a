"""What a task costs others beyond its plan is no more than its share, and what a job may owe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.excess import Debts, Excess, share_of

FREE_NS = 1_000
FREE = {False: FREE_NS, True: 10 * FREE_NS}
"""By whether it is a warm-up job."""
NEVER = 0


def test_what_is_owed_is_paid_by_the_share() -> None:
    for warmup in (False, True):
        excess = Excess()
        excess.costs(0, 3 * FREE_NS, 0.25, warmup=warmup)
        assert excess.throttled_ns(0, FREE_NS, 0.25, warmup=warmup) == 8 * FREE_NS
        assert excess.throttled_ns(6 * FREE_NS, FREE_NS, 0.25, warmup=warmup) == 2 * FREE_NS
        assert excess.throttled_ns(8 * FREE_NS, FREE_NS, 0.25, warmup=warmup) == NEVER


def test_a_task_that_costs_nothing_is_never_throttled() -> None:
    excess = Excess()
    for now in range(0, 100 * FREE_NS, FREE_NS):
        assert excess.throttled_ns(now, FREE_NS, 0.01, warmup=False) == NEVER
        excess.costs(now, 0, 0.01, warmup=False)


def test_a_task_has_its_part_of_what_nobody_was_charged() -> None:
    assert share_of(0.5, [0.5, 0.25]) == 0.5
    assert share_of(0.0, [0.5, 0.0]) == 0.25
    assert share_of(0.0, [1.0, 0.0]) == 0.01
    assert share_of(0.0, [0.75, 0.75, 0.0]) == 0.01
    assert share_of(0.0, []) == 1.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_all_shares_together_are_no_more_than_the_device(charged: list[float]) -> None:
    whole = max(1.0, sum(charged))
    shares = [share_of(one, charged) for one in charged]
    assert sum(shares) <= whole + 0.01 * len(charged) + 1e-9
    assert all(share >= one for share, one in zip(shares, charged, strict=True))


def test_a_program_that_took_long_to_start_is_not_throttled_when_it_runs() -> None:
    excess = Excess()
    excess.costs(0, 9 * FREE_NS, 0.5, warmup=True)
    assert excess.throttled_ns(0, FREE_NS, 0.5, warmup=False) == NEVER


def test_the_share_pays_once_and_for_jobs_first() -> None:
    excess = Excess()
    excess.costs(0, 4 * FREE_NS, 0.5, warmup=True)
    excess.costs(0, 3 * FREE_NS, 0.5, warmup=False)
    assert excess.throttled_ns(0, FREE_NS, 0.5, warmup=False) == 4 * FREE_NS
    assert excess.throttled_ns(0, FREE_NS, 0.5, warmup=True) == 12 * FREE_NS
    assert excess.throttled_ns(6 * FREE_NS, FREE_NS, 0.5, warmup=False) == NEVER
    assert excess.throttled_ns(6 * FREE_NS, FREE_NS, 0.5, warmup=True) == 6 * FREE_NS
    assert excess.throttled_ns(12 * FREE_NS, FREE_NS, 0.5, warmup=True) == NEVER


def test_jobs_and_warm_up_jobs_in_turn_take_one_share() -> None:
    """Each as long as it may, whichever may begin sooner."""
    excess, now, lost, share = Excess(), 0, 0, 0.1
    while now < 10_000 * FREE_NS:
        held = {kind: excess.throttled_ns(now, FREE[kind], share, warmup=kind) for kind in FREE}
        warmup = min(held, key=held.__getitem__)
        now += held[warmup] + FREE[warmup]
        lost += FREE[warmup]
        excess.costs(now, FREE[warmup], share, warmup=warmup)
    assert lost <= 2 * sum(FREE.values()) + share * now


def test_a_larger_share_pays_from_now_on() -> None:
    excess = Excess()
    excess.costs(0, 3 * FREE_NS, 0.1, warmup=False)
    assert excess.throttled_ns(10 * FREE_NS, FREE_NS, 1.0, warmup=False) == FREE_NS
    assert excess.throttled_ns(11 * FREE_NS, FREE_NS, 1.0, warmup=False) == NEVER


def test_a_debt_is_its_tasks_however_often_that_comes_and_goes() -> None:
    debts = Debts()
    debts.costs("greedy", 0, 3 * FREE_NS, 0.25, warmup=False)
    assert debts.of("other") is None
    debts.costs("greedy", 4 * FREE_NS, FREE_NS, 0.25, warmup=False)
    excess = debts.of("greedy")
    assert excess is not None
    assert excess.throttled_ns(4 * FREE_NS, FREE_NS, 0.25, warmup=False) == 8 * FREE_NS


def test_no_debts_are_kept_of_tasks_that_have_paid() -> None:
    """However many come and go, each with a name of its own."""
    debts, now = Debts(), 0
    for number in range(5_000):
        now += FREE_NS
        debts.costs(f"once-{number}", now, FREE_NS, 0.01, warmup=bool(number % 2))
        assert len(debts) <= 101
    debts.costs("last", now + 100 * FREE_NS, 1, 0.01, warmup=False)
    assert len(debts) == 1


@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 5 * FREE_NS),  # how long the task waits before it
            st.integers(0, FREE_NS),  # what it costs others by its end, in parts of its limit
            st.booleans(),  # whether it is a warm-up job
        ),
        min_size=1,
        max_size=60,
    ),
    share=st.floats(0.01, 1.0),
)
def test_in_any_window_others_lose_no_more_than_the_theorem_says(
    jobs: list[tuple[int, int, bool]], share: float
) -> None:
    excess, now, seen, most = Excess(), 0, list[tuple[int, int, int]](), dict[bool, int]()
    for pause, part, warmup in jobs:
        now += pause
        while held := excess.throttled_ns(now, FREE[warmup], share, warmup=warmup):
            now += held
        cost = part * FREE[warmup] // FREE_NS
        most[warmup] = max(most.get(warmup, 0), cost)
        begins, now = now, now + cost
        excess.costs(now, cost, share, warmup=warmup)
        seen.append((begins, now, cost))
    bound = sum(FREE[kind] + cost for kind, cost in most.items())
    for first, (begins, _, _) in enumerate(seen):
        lost = 0
        for _, ends, cost in seen[first:]:
            lost += cost
            assert lost <= bound + share * (ends - begins) + 1e-3
