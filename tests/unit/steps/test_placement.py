"""Addresses: no two that live at once share a byte, and little is wasted."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tierline_steps.placement import Interval, Placement, placed

ARENA = 1 << 32
"""In which a placement of less than 2^20 bytes is small."""

intervals = st.lists(
    st.builds(
        lambda first, length, size: Interval(first, first + length, size),
        st.integers(0, 12),
        st.integers(0, 6),
        st.sampled_from((0, 512, 1 << 16, 1 << 18, 3 << 18, 1 << 20, 5 << 20)),
    ),
    max_size=30,
)


@given(intervals, st.integers(0, 5))
def test_no_two_that_live_at_once_share_a_byte(found: list[Interval], searched: int) -> None:
    placement = _placed(found, 0, searched)
    for number, (one, at) in enumerate(zip(found, placement.offsets, strict=True)):
        assert 0 <= at <= placement.top_bytes - one.size_bytes
        for other, there in list(zip(found, placement.offsets, strict=True))[:number]:
            if one.first <= other.last and other.first <= one.last:
                empty = not (one.size_bytes and other.size_bytes)
                apart = at + one.size_bytes <= there or there + other.size_bytes <= at
                assert empty or apart


@given(intervals)
def test_a_search_wastes_no_more_than_none(found: list[Interval]) -> None:
    least = _most_live(found) or 1
    assert _placed(found, least, 20).top_bytes <= _placed(found, least, 0).top_bytes


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=25))
def test_equal_sizes_waste_nothing(spans: list[tuple[int, int]]) -> None:
    """The first to live first, each at the lowest place: optimal for intervals of one size."""
    found = [Interval(first, first + length, 1 << 20) for first, length in spans]
    assert _placed(found, _most_live(found), 0).top_bytes == _most_live(found)


def test_a_search_wastes_much_less_than_the_best_rule() -> None:
    rng = _random(1)
    waste = [0.0, 0.0]
    for _ in range(5):
        found = [
            Interval(first, first + rng.randrange(1, 20), rng.choice((1, 2, 3, 5, 7, 11)) << 20)
            for first in range(60)
            for _ in range(2)
        ]
        for number, searches in enumerate((0, 100)):
            least = _most_live(found)
            waste[number] += _placed(found, least, searches).top_bytes / least - 1
    assert waste[1] < 0.5 * waste[0]


def _placed(found: list[Interval], room: int, searches: int) -> Placement:
    left = iter(range(searches))
    return placed(found, room or ARENA, lambda: next(left, None) is not None, _random(1))


def _most_live(found: list[Interval]) -> int:
    return max(
        (
            sum(one.size_bytes for one in found if one.first <= step <= one.last)
            for step in range(max((one.last for one in found), default=0) + 1)
        ),
        default=0,
    )


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same in every run
