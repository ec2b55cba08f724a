from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierline_agent.errors import QuotaExceeded
from tierline_agent.policy.layout import (
    check_layers,
    check_pinned,
    check_span_fits,
    place,
    residents_of,
    streamed_of,
)
from tierline_agent.transport.protocol import RESIDENT_BIT, LayerSpan


@given(count=st.integers(1, 40), ring=st.integers(1, 6), data=st.data())
def test_every_extent_has_one_place(count: int, ring: int, data: st.DataObject) -> None:
    resident = data.draw(st.sets(st.integers(0, count - 1)))
    words = place(count, resident, ring)
    assert residents_of(words) == tuple(sorted(resident))
    assert [word - RESIDENT_BIT for word in words if word & RESIDENT_BIT] == list(
        range(len(resident))
    )
    assert [words[extent] for extent in streamed_of(words)] == [
        number % ring for number in range(count - len(resident))
    ]


@given(count=st.integers(1, 20), span=st.integers(1, 20), ring=st.integers(1, 5), data=st.data())
def test_a_span_is_refused_only_if_no_layer_of_it_could_fit(
    count: int, span: int, ring: int, data: st.DataObject
) -> None:
    resident = data.draw(st.sets(st.integers(0, count - 1)))
    words = place(count, resident, ring)

    def fits(first: int) -> bool:
        try:
            check_layers([LayerSpan(first, min(first + span, count) - 1)], words, ring)
        except QuotaExceeded:
            return False
        return True

    possible = any(fits(first) for first in range(max(1, count - span + 1)))
    try:
        check_span_fits(span, count, resident, ring)
    except QuotaExceeded:
        assert not possible
    else:
        assert possible


def test_layers_must_lie_in_the_arena_and_fit_the_ring() -> None:
    words = place(6, {0, 3}, 2)
    check_layers([LayerSpan(0, 1), LayerSpan(1, 2), LayerSpan(1, 0), LayerSpan(2, 4)], words, 2)
    with pytest.raises(QuotaExceeded, match="layer 0 streams 3 extents"):
        check_layers([LayerSpan(2, 5)], words, 2)
    with pytest.raises(QuotaExceeded, match="layer 1 reads extent 6"):
        check_layers([LayerSpan(0, 0), LayerSpan(5, 6)], words, 2)


def test_pinned_bytes_must_be_resident() -> None:
    check_pinned(0, 100, set())
    check_pinned(101, 100, {0, 1})
    with pytest.raises(QuotaExceeded, match="extent 1"):
        check_pinned(101, 100, {0})
