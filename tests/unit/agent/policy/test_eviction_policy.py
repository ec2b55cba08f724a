from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.eviction import Choice, Idle, choose

IDLE = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=8).map(
    lambda found: [Idle(key, domain, since) for key, (domain, since) in enumerate(found)]
)


@given(idle=IDLE, wanted=st.integers(0, 12), room=st.integers(-3, 12))
def test_a_choice_is_complete_within_the_limit_and_inside_the_domain(
    idle: list[Idle], wanted: int, room: int
) -> None:
    choice = choose(idle, "a", wanted, room)
    domains = {extent.key: extent.domain for extent in idle}
    assert len(choice.reuse) + choice.create == wanted
    assert all(domains[key] == "a" for key in choice.reuse)
    assert not set(choice.destroy) & set(choice.reuse)
    assert len(set(choice.destroy)) == len(choice.destroy)
    assert choice.create - len(choice.destroy) - choice.short <= room
    if choice.short:
        assert len(choice.destroy) + len(choice.reuse) == len(idle)
    own = sum(domain == "a" for domain in domains.values())
    assert len(choice.reuse) == min(own, wanted)


def test_the_longest_idle_of_others_go_first_and_the_latest_of_ones_own_are_reused() -> None:
    idle = [Idle(1, "b", 5), Idle(2, "b", 3), Idle(3, "a", 1), Idle(4, "a", 2)]
    assert choose(idle, "a", 1, 0) == Choice((4,), (), 0, 0)
    assert choose(idle, "a", 3, 0) == Choice((3, 4), (2,), 1, 0)


def test_ones_own_make_room_when_the_limit_was_lowered() -> None:
    idle = [Idle(1, "a", 1), Idle(2, "b", 2), Idle(3, "a", 3)]
    assert choose(idle, "a", 0, -2) == Choice((), (2, 1), 0, 0)
    assert choose(idle, "a", 1, -3) == Choice((3,), (2, 1), 0, 1)
