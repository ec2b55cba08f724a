from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.policy.transfers import BACKGROUND_NS, consumed_needed, slot_of, urgency


@given(extents=st.integers(1, 60), ring=st.integers(1, 12), data=st.data())
def test_no_slot_is_written_while_it_may_be_read(
    extents: int, ring: int, data: st.DataObject
) -> None:
    """Copy and consume in any order that the rule allows: what is in a slot is never overwritten
    before it was consumed, and the two always come to an end together."""
    slots: dict[int, int] = {}
    copied = consumed = 0
    while consumed < extents:
        may_copy = copied < extents and consumed >= consumed_needed(copied, ring)
        may_consume = consumed < copied
        assert may_copy or may_consume, "neither side can go on"
        if may_copy and (not may_consume or data.draw(st.booleans())):
            held = slots.get(slot_of(copied, ring))
            assert held is None or held < consumed
            slots[slot_of(copied, ring)] = copied
            copied += 1
        else:
            assert slots[slot_of(consumed, ring)] == consumed
            consumed += 1


@given(st.lists(st.integers(0, 1 << 62)))
def test_background_transfers_go_last_and_equals_in_order_of_arrival(deadlines: list[int]) -> None:
    queue = [urgency(deadline, arrival) for arrival, deadline in enumerate(deadlines)]
    queue.append(urgency(BACKGROUND_NS, len(deadlines)))
    assert sorted(queue)[-1] == queue[-1]
    assert len(set(queue)) == len(queue)
