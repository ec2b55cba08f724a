from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.prefetch import (
    Prefetched,
    Prefix,
    Situation,
    freed_by,
    may_prefetch,
    reach,
)
from tierline_agent.policy.transfers import consumed_needed, slot_of

IDLE = Situation(waiting=0, parked=0, blocked=False, others_hold=False)


@given(extents=st.integers(1, 60), ring=st.integers(1, 12), data=st.data())
def test_no_slot_is_taken_from_a_job_that_may_still_read_it(
    extents: int, ring: int, data: st.DataObject
) -> None:
    """A job and the copies for its next one, in any order that the rules allow: what the job has
    not consumed is never overwritten, and at its end all that there is room for can be copied."""
    slots: dict[int, tuple[str, int]] = {}
    copied = consumed = 0
    ahead: set[int] = set()
    while consumed < extents or len(ahead) < reach(extents, ring):
        free = [
            number
            for number in range(reach(extents, ring))
            if number not in ahead and consumed >= freed_by(number, extents, ring)
        ]
        may = {
            "copy": copied < extents and consumed >= consumed_needed(copied, ring),
            "consume": consumed < copied,
            "go ahead": copied == extents and bool(free),
        }
        step = data.draw(st.sampled_from([name for name, possible in may.items() if possible]))
        if step == "copy":
            slots[slot_of(copied, ring)] = ("job", copied)
            copied += 1
        elif step == "consume":
            assert slots[slot_of(consumed, ring)] == ("job", consumed)
            consumed += 1
        else:
            number = data.draw(st.sampled_from(free))
            slots[slot_of(number, ring)] = ("next", number)
            ahead.add(number)
    assert slots == {slot_of(number, ring): ("next", number) for number in ahead}


@pytest.mark.parametrize(
    "now",
    [
        replace(IDLE, waiting=1),
        replace(IDLE, parked=1),
        replace(IDLE, blocked=True),
        replace(IDLE, others_hold=True),
    ],
    ids=["somebody waits", "a job is parked", "nobody is granted", "others run"],
)
def test_copies_begin_only_where_nobody_is_in_the_way_of_them(now: Situation) -> None:
    assert may_prefetch(IDLE)
    assert not may_prefetch(now)


def test_what_lies_in_a_ring_is_found_once_and_by_its_own_arena() -> None:
    prefetched = Prefetched()
    prefetched.keep("red", Prefix("a", 2, 200))
    prefetched.keep("blue", Prefix("b", 1, 100))
    assert prefetched.reaches("red", "a") == 2
    assert prefetched.reaches("red", "b") == 0
    assert prefetched.take("red", "a") == Prefix("a", 2, 200)
    assert prefetched.take("red", "a") == Prefix("a", 0, 0)
    # Others look in vain, and overwrite it.
    assert prefetched.take("blue", "a") == Prefix("a", 0, 0)
    assert prefetched.take("blue", "b") == Prefix("b", 0, 0)


@pytest.mark.parametrize("by", ["other", None], ids=["another arena", "its own in the middle"])
def test_a_ring_that_is_overwritten_holds_nothing(by: str | None) -> None:
    prefetched = Prefetched()
    prefetched.keep("red", Prefix("a", 2, 200))
    prefetched.overwritten("blue", by=by)
    prefetched.overwritten("red", by="a")
    assert prefetched.reaches("red", "a") == 2
    prefetched.overwritten("red", by=by)
    assert prefetched.reaches("red", "a") == 0


def test_an_arena_that_is_gone_lies_nowhere() -> None:
    prefetched = Prefetched()
    prefetched.keep("red", Prefix("a", 2, 200))
    prefetched.keep("blue", Prefix("b", 1, 100))
    prefetched.arena_removed("a")
    assert (prefetched.reaches("red", "a"), prefetched.reaches("blue", "b")) == (0, 1)
