from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.leases import Ask, Claim, Grant, Keep, Rank, decide, yields

NOW = 3


def early(claim: Claim) -> bool:
    return claim.eligible_ns > NOW


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    deadlines = draw(st.lists(st.integers(0, 5), max_size=8))
    return [
        Claim(
            key,
            deadline,
            arrival=key,
            rank=draw(st.sampled_from(Rank)),
            eligible_ns=draw(st.integers(NOW - 2, NOW + 2)),
        )
        for key, deadline in enumerate(deadlines)
    ]


@given(claims())
def test_the_most_urgent_of_the_highest_class_goes_first(waiting: list[Claim]) -> None:
    decision = decide(None, waiting, now_ns=NOW)
    if not waiting:
        assert decision == Keep()
        return
    assert isinstance(decision, Grant)
    chosen = waiting[decision.key]
    for other in waiting:
        assert chosen.rank <= other.rank
        if other.rank == chosen.rank:
            assert early(chosen) <= early(other)
            if early(other) == early(chosen):
                assert chosen.deadline_ns <= other.deadline_ns
                if other.deadline_ns == chosen.deadline_ns:
                    assert chosen.arrival <= other.arrival


@given(claims(), claims())
def test_a_holder_is_never_interrupted_and_asked_only_if_it_yields(
    holders: list[Claim], waiting: list[Claim]
) -> None:
    for holder in holders:
        assert decide(holder, waiting, now_ns=NOW) == Keep()
        preemptible = replace(holder, preemptible=True)
        expected = Ask() if yields(holder, waiting, now_ns=NOW) else Keep()
        assert decide(preemptible, waiting, now_ns=NOW) == expected


@given(claims())
def test_the_order_in_which_claims_are_looked_at_does_not_matter(
    waiting: list[Claim],
) -> None:
    shuffled = sorted(waiting, key=lambda claim: -claim.arrival)
    assert decide(None, waiting, now_ns=NOW) == decide(None, shuffled, now_ns=NOW)


@given(claims(), claims())
def test_a_holder_gives_way_only_to_an_earlier_deadline_whose_time_has_come(
    holders: list[Claim], waiting: list[Claim]
) -> None:
    for holder in holders:
        earlier = [
            claim
            for claim in waiting
            if claim.rank < holder.rank
            or (
                claim.rank == holder.rank
                and claim.deadline_ns < holder.deadline_ns
                and (early(holder) or not early(claim))
            )
        ]
        assert yields(holder, waiting, now_ns=NOW) == bool(earlier)
