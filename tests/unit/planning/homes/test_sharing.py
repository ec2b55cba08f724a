"""Shares of tiers against the optimum, and what the order along a stream keeps."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.bench.placement.exact import optimum
from tests.bench.placement.sets import random_set

from tierline_operator.planning.homes.interleaving import interleave
from tierline_operator.planning.homes.sharing import Lot, share
from tierline_operator.planning.wishes import MOST_RUNS

SECONDS = (1.0, 2.0, 9.0)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Lot], list[int], bool]:
    """A few small lots, and two or three tiers that may be too small."""
    tiers = draw(st.integers(2, 3))
    times = draw(st.lists(st.sampled_from(SECONDS), min_size=tiers, max_size=tiers).map(sorted))
    lots = draw(
        st.lists(
            st.builds(
                Lot,
                extents=st.integers(0, 6),
                tiers=st.permutations(range(tiers)).flatmap(
                    lambda order: st.integers(1, tiers).map(lambda n: tuple(order[:n]))
                ),
                copy_s=st.sampled_from([tuple(times), (0.0,) * tiers]),
                compute_s=st.sampled_from([0.0, 3.0, 20.0]),
                limit_s=st.sampled_from([8.0, 30.0, float("inf")]),
                weight=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    room = draw(st.lists(st.integers(-1, 14), min_size=tiers, max_size=tiers))
    return lots, room, draw(st.booleans())


@given(questions())
def test_shares_fit_and_lie_only_where_they_may(
    question: tuple[list[Lot], list[int], bool],
) -> None:
    lots, room, in_turn = question
    shares = share(lots, room, in_turn=in_turn)
    if shares is None:
        assert sum(lot.extents for lot in lots) > min(
            sum(max(0, room[tier]) for tier in lot.tiers) for lot in lots
        ) or any(len(lot.tiers) < len(room) for lot in lots)
        return
    for lot, counts in zip(lots, shares, strict=True):
        assert sum(counts) == lot.extents
        assert all(count >= 0 for count in counts)
        assert all(not count or tier in lot.tiers for tier, count in enumerate(counts))
    for tier, most in enumerate(room):
        assert sum(counts[tier] for counts in shares) <= max(0, most)


def test_all_that_fits_in_the_preferred_tier_lies_there() -> None:
    lots = [Lot(5, order, SECONDS, 1.0, weight=1.0) for order in ((0, 2), (2, 0), (1, 0, 2))]
    assert share(lots, [99, 99, 99], in_turn=False) == [[5, 0, 0], [5, 0, 0], [3, 2, 0]]


def test_a_scarce_tier_goes_first_to_deadlines_and_then_by_gain_up_to_the_floor() -> None:
    slow = Lot(10, (0, 1), (1.0, 10.0), 30.0, weight=0.01, limit_s=70.0)
    fast = Lot(10, (0, 1), (1.0, 10.0), 30.0, weight=1.0)
    assert share([slow, fast], [3, 99], in_turn=False) == [[3, 7], [0, 10]]
    assert share([slow, fast], [10, 99], in_turn=False) == [[3, 7], [7, 3]]
    # Below the floor nothing is gained: what is left goes by preference, in the order given.
    assert share([slow, fast], [15, 99], in_turn=False) == [[8, 2], [7, 3]]


def test_where_links_take_turns_all_copies_of_a_job_add_up() -> None:
    lot = Lot(10, (1, 0), (1.0, 10.0), 30.0, weight=1.0)
    assert share([lot], [99, 99], in_turn=False) == [[7, 3]]
    assert share([lot], [99, 99], in_turn=True) == [[8, 2]]


def test_the_rule_is_within_three_percent_of_the_optimum() -> None:
    over = []
    for seed, (dram, pmem) in itertools.product(range(3), ((0.1, 0.3), (0.25, 0.1), (0.5, 0.0))):
        asked = random_set(10, seed, dram, pmem)
        best = optimum(asked)
        assert best is not None
        over.append(asked.load(asked.by_rule()) / best - 1)
        assert not asked.late(asked.by_rule())
        assert over[-1] > -1e-4
    assert sorted(over)[len(over) // 2] <= 0.03
    assert max(over) <= 0.1


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 30), st.just("wished"), max_size=8),
)
def test_every_stretch_of_a_stream_has_its_part_of_each_tier(
    counts: list[int], fixed: dict[int, str]
) -> None:
    extents = sum(counts) + len(fixed)
    fixed = dict(zip(sorted(e % max(1, extents) for e in fixed), fixed.values(), strict=False))
    shares = [(f"tier-{number}", count) for number, count in enumerate(counts)]
    shares[0] = ("tier-0", shares[0][1] + extents - sum(counts) - len(fixed))
    homes = interleave(extents, fixed, shares)
    assert all(homes[extent] == tier for extent, tier in fixed.items())
    moving = [home for extent, home in enumerate(homes) if extent not in fixed]
    for tier, count in shares:
        assert moving.count(tier) == count
        for end in range(len(moving) + 1):
            assert abs(moving[:end].count(tier) - count * end / max(1, len(moving))) <= 2


def test_a_plan_can_name_the_runs_of_the_largest_task() -> None:
    homes = interleave(32_768, {}, [("dram", 20_000), ("pmem", 10_000), ("nvme", 2_768)])
    assert sum(1 for _ in itertools.groupby(homes)) <= MOST_RUNS
    assert homes.count("nvme") == 2_768
