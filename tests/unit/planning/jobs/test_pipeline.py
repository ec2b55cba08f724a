"""The job time against a reference written the other way round, and its traps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.spans import largest_span
from tests.unit.planning.shapes import layout_of, random_layout

from tierline_api.layout import ArenaLayout
from tierline_operator.planning.jobs.pipeline import (
    LinkRate,
    Pipeline,
    RingTooSmall,
)

UNIT = LinkRate(100.0)  # one full extent of 100 bytes in one second


def reference(
    layout: ArenaLayout,
    compute: list[float],
    resident: set[int],
    ring: int,
    *,
    link_of: list[int],
    links: list[LinkRate],
    delay: float,
) -> float:
    """The same quantities as least fixed point of all precedence constraints, arena by arena."""
    held = resident | layout.pinned_extents
    total = 0.0
    for arena in range(layout.arena_count):
        mine = [i for i, owner in enumerate(layout.layer_arena) if owner == arena]
        used = [
            x for x in layout.extents_of_arena(arena) if x not in held and layout.last_layer[x] >= 0
        ]
        copied = dict.fromkeys(used, 0.0)
        end = dict.fromkeys(mine, 0.0)
        for _ in range(4 * (len(used) + len(mine)) + 4):
            before = (dict(copied), dict(end))
            chain = [delay] * len(links)
            for j, x in enumerate(used):
                begin = chain[link_of[x]]
                if j >= ring:
                    begin = max(begin, end[layout.last_layer[used[j - ring]]])
                copied[x] = begin + links[link_of[x]].copy_s(layout.extent_sizes[x])
                chain[link_of[x]] = copied[x]
            previous = 0.0
            for i in mine:
                needs = [copied[x] for x in used if x <= layout.last_extent[i]]
                end[i] = max([previous, *needs]) + compute[i]
                previous = end[i]
            if (copied, end) == before:
                break
        else:
            return math.inf  # it grows for ever: the constraints have a cycle
        total += previous if mine else 0.0
    return total


@pytest.mark.parametrize("arenas", [1, 2])
def test_the_recursion_is_the_least_solution_of_its_constraints(arenas: int) -> None:
    rng = np.random.default_rng(arenas)
    deadlocks = 0
    for _ in range(400):
        layout = random_layout(rng, arenas=arenas)
        compute = [
            float(rng.choice([0.0, 0.5, rng.random() * 3])) for _ in range(layout.layer_count)
        ]
        links = [LinkRate(float(rng.choice([50.0, 100.0, 400.0])), float(rng.choice([0.0, 0.1])))]
        links.append(LinkRate(70.0))
        link_of = [int(rng.integers(2)) for _ in range(layout.extent_count)]
        resident = {x for x in range(layout.extent_count) if rng.random() < 0.3}
        ring, delay = int(rng.integers(1, 7)), float(rng.choice([0.0, 1.0]))
        expected = reference(
            layout, compute, resident, ring, link_of=link_of, links=links, delay=delay
        )
        got = Pipeline(layout, compute, link_of, links, delay).total_s(resident, ring)
        deadlocks += expected == math.inf
        assert got == pytest.approx(expected)
    assert 0 < deadlocks < 300


def other_shares(
    rng: np.random.Generator, compute: list[float], longest: list[float]
) -> list[float]:
    """Layer times of another job: none above its longest, in all no more than before."""
    left, times = sum(compute), [0.0] * len(compute)
    for layer in rng.permutation(len(compute)):
        most = min(longest[layer], left)
        times[layer] = most * float(rng.choice([1.0, 1.0, rng.random(), 0.0]))
        left -= times[layer]
    return times


@pytest.mark.parametrize("arenas", [1, 2])
def test_no_job_that_was_seen_takes_longer_however_its_layers_share_its_time(arenas: int) -> None:
    rng = np.random.default_rng(10 + arenas)
    longer = tight = 0
    for _ in range(300):
        layout = random_layout(rng, arenas=arenas)
        compute = [rng.random() for _ in range(layout.layer_count)]
        longest = [one * float(rng.choice([1.0, 1.5, 4.0])) for one in compute]
        links = [LinkRate(float(rng.choice([50.0, 100.0, 400.0])), 0.05)]
        link_of = [0] * layout.extent_count
        resident = {x for x in range(layout.extent_count) if rng.random() < 0.3}
        ring = largest_span(layout) + int(rng.integers(4))
        gate_s = float(rng.choice([0.0, 0.2]))

        def pipeline(times: list[float], most: list[float] | None = None) -> Pipeline:
            gated = [one + gate_s for one in times]  # noqa: B023 - called at once
            others = [] if most is None else [one + gate_s for one in most]  # noqa: B023
            return Pipeline(
                *(layout, gated, link_of, links, 0.3),  # noqa: B023
                longest_s=others,
                gate_s=gate_s,  # noqa: B023
            )

        bound = pipeline(compute, longest)
        planned = bound.total_s(resident, ring)
        assert planned >= pipeline(compute).total_s(resident, ring) - 1e-9
        worst = 0.0
        for _ in range(30):
            seen = pipeline(other_shares(rng, compute, longest))
            worst = max(worst, seen.total_s(resident, ring))
            assert seen.call_s(resident, ring) <= bound.call_s(resident, ring) + 1e-9
        assert worst <= planned + 1e-9
        longer += worst > pipeline(compute).total_s(resident, ring) + 1e-9
        tight += worst > 0.9 * planned
    assert longer > 30, "the shares of the longest job alone are no bound"
    assert tight > 100


def test_where_layers_are_steady_or_resident_nothing_is_added() -> None:
    layout = layout_of([100] * 4)
    steady = Pipeline(layout, [1.0] * 4, [0] * 4, [UNIT], longest_s=[1.0] * 4)
    assert steady.total_s(set(), 2) == 5.0
    unsteady = Pipeline(layout, [1.0] * 4, [0] * 4, [UNIT], longest_s=[1.0, 1.0, 1.0, 4.0])
    assert unsteady.total_s({0, 1, 2, 3}, 2) == 4.0
    assert unsteady.total_s(set(), 2) == pytest.approx(8.0, abs=0.5)
    assert unsteady.total_s(set(), 2) >= 8.0  # the last extent is there at 4, its layer takes 4


def test_a_job_of_resident_weights_takes_its_compute_time() -> None:
    layout = layout_of([150, 250])
    everything = set(range(layout.extent_count))
    pipeline = Pipeline(layout, [1.0, 2.0], [0] * 4, [UNIT], 9.0)
    assert pipeline.total_s(everything, 0) == 3.0


def test_t2_the_larger_of_compute_and_copy_is_no_bound() -> None:
    layout = layout_of([100] * 4)
    compute = [1.0] * 4
    total_s = Pipeline(layout, compute, [0] * 4, [UNIT]).total_s(set(), 2)
    assert max(sum(compute), layout.weight_bytes / 100.0) == 4.0
    assert total_s == 5.0  # the first extent is waited for with nothing to do


def test_t9_a_layer_larger_than_the_ring_is_an_answer_not_a_number() -> None:
    pipeline = Pipeline(layout_of([100, 300, 100]), [1.0] * 3, [0] * 5, [UNIT])
    with pytest.raises(RingTooSmall, match="layer 1 streams 3 extents") as caught:
        pipeline.call_s(set(), 2)
    assert (caught.value.layer, caught.value.span) == (1, 3)
    assert pipeline.total_s({2}, 2) == pytest.approx(6.0)


def test_without_a_ring_nothing_streams() -> None:
    with pytest.raises(RingTooSmall):
        Pipeline(layout_of([100]), [1.0], [0], [UNIT]).call_s(set(), 0)


def test_links_work_in_parallel_but_publish_in_order() -> None:
    layout = layout_of([100] * 4)
    fast, slow = LinkRate(100.0), LinkRate(25.0)
    total_s = Pipeline(layout, [0.0] * 4, [1, 0, 0, 0], [fast, slow]).total_s(set(), 4)
    assert total_s == 4.0  # the three fast extents are there at 3, unseen until the first is
    total_s = Pipeline(layout, [1.0] * 4, [1, 0, 0, 0], [fast, slow]).total_s(set(), 4)
    assert total_s == 8.0  # no layer begins before


def test_p3_a_blocked_link_costs_at_most_its_delay() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        layout = random_layout(rng)
        compute = [rng.random() for _ in range(layout.layer_count)]
        ring = largest_span(layout) + 1
        link_of = [0] * layout.extent_count
        plain = Pipeline(layout, compute, link_of, [UNIT]).total_s(set(), ring)
        blocked = Pipeline(layout, compute, link_of, [UNIT], 0.7).total_s(set(), ring)
        assert plain <= blocked <= plain + 0.7 + 1e-9


def test_a_ring_or_residency_never_hurts() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        layout = random_layout(rng)
        compute = [rng.random() for _ in range(layout.layer_count)]
        pipeline = Pipeline(layout, compute, [0] * layout.extent_count, [UNIT])
        ring = largest_span(layout) + 1
        resident = {x for x in range(layout.extent_count) if rng.random() < 0.4}
        time = pipeline.total_s(resident, ring)
        assert pipeline.total_s(resident, ring + 1) <= time + 1e-9
        more = resident | {int(rng.integers(layout.extent_count + 1))}
        assert pipeline.total_s(more, ring) <= time + 1e-9
        assert pipeline.total_s(set(), ring) >= sum(compute) - 1e-9


def test_extents_that_share_a_link_are_ready_later_than_in_turn() -> None:
    layout = layout_of([100, 100])
    shared = LinkRate(100.0, in_flight=2)
    assert Pipeline(layout, [0.0, 0.0], [0, 0], [shared]).total_s(set(), 2) == 3.0


def shared_link_run(
    layout: ArenaLayout, compute: list[float], ring: int, rate: float, at_once: int
) -> float:
    """A job on a link that gives equal shares to up to `at_once` copies, told event by event."""
    needs = [sum(1 for x in range(layout.extent_count) if x <= last) for last in layout.last_extent]
    now = 0.0
    active: list[list[float]] = []  # [extent, bytes left], oldest first
    started = done = consumed = layer = 0
    ends: float | None = None
    while True:
        while len(active) < at_once and started < layout.extent_count and started - consumed < ring:
            active.append([started, layout.extent_sizes[started]])
            started += 1
        if ends is None and done >= needs[layer]:
            ends = now + compute[layer]
        step = min(
            min((left for _, left in active), default=math.inf) * len(active) / rate
            if active
            else math.inf,
            math.inf if ends is None else ends - now,
        )
        now += step
        for copy in active:
            copy[1] -= step * rate / len(active)
        active = [copy for copy in active if copy[1] > 1e-9]
        done = int(active[0][0]) if active else started
        if ends is not None and ends <= now + 1e-12:
            consumed = sum(1 for reader in layout.last_layer if reader <= layer)
            layer, ends = layer + 1, None
            if layer == len(compute):
                return now


def test_copies_that_share_a_link_never_take_a_job_beyond_its_bound() -> None:
    rng = np.random.default_rng(5)
    late = 0
    for _ in range(200):
        layout = random_layout(rng, pinned=False)
        compute = [float(x) for x in rng.random(layout.layer_count) * 2]
        ring = largest_span(layout) + int(rng.integers(1, 4))
        link_of = [0] * layout.extent_count
        seen = shared_link_run(layout, compute, ring, 100.0, at_once=2)
        serial = Pipeline(layout, compute, link_of, [UNIT]).total_s(frozenset(), ring)
        shared = Pipeline(layout, compute, link_of, [LinkRate(100.0, in_flight=2)])
        assert seen <= shared.total_s(frozenset(), ring) + 1e-9
        late += seen > serial + 1e-9
    assert late > 20  # in turn is no bound for copies that share


def test_where_one_engine_copies_from_all_tiers_its_copies_add_up() -> None:
    """As a GPU's: one link whose extents take as long as each from its own tier."""
    rng = np.random.default_rng(6)
    links, longer = [LinkRate(100.0), LinkRate(30.0)], 0
    for _ in range(100):
        layout = random_layout(rng, pinned=False)
        compute = [float(x) for x in rng.random(layout.layer_count) * 2]
        ring = largest_span(layout) + int(rng.integers(1, 4))
        link_of = [int(x) for x in rng.integers(2, size=layout.extent_count)]
        at_once = Pipeline(layout, compute, link_of, links)
        in_turn = Pipeline(layout, compute, link_of, links, in_turn=True)
        one = Pipeline(layout, compute, [0] * layout.extent_count, links[:1])
        one.copy_s = at_once.copy_s
        assert in_turn.total_s(frozenset(), ring) == one.total_s(frozenset(), ring)
        assert in_turn.total_s(frozenset(), ring) >= at_once.total_s(frozenset(), ring)
        longer += in_turn.total_s(frozenset(), ring) > at_once.total_s(frozenset(), ring)
    assert longer > 50


def test_what_is_staged_is_copied_twice_where_another_tier_has_the_engine_between() -> None:
    links = [LinkRate(100.0), LinkRate(50.0, staged=True)]
    layout = layout_of([100] * 4)
    mixed = Pipeline(layout, [0.0] * 4, [0, 1, 0, 1], links, in_turn=True)
    alone = Pipeline(layout, [0.0] * 4, [0] * 4, links[1:], in_turn=True)
    assert mixed.copy_s == [1.0, 3.0, 1.0, 3.0]
    assert alone.copy_s == [2.0] * 4
    assert mixed.total_s(frozenset(), 4) == 8.0


def test_all_pinned_weights_may_have_one_compute_time() -> None:
    layout = layout_of([])
    assert Pipeline(layout, [2.0], [], [UNIT]).total_s(set(), 0) == 2.0


@pytest.mark.parametrize(
    ("compute", "link_of", "says"),
    [([1.0, 2.0], [0], "2 compute times for 1 layers"), ([1.0], [], "0 links for 1 extents")],
)
def test_lengths_must_match(compute: list[float], link_of: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Pipeline(layout_of([100]), compute, link_of, [UNIT])


@pytest.mark.parametrize("devices", [1, 3])
def test_a_margin_makes_all_of_a_copy_slower(devices: int) -> None:
    """What a transfer takes besides its bytes is measured, too."""
    link = LinkRate(100.0, overhead_s=0.5, in_flight=2, devices=devices, turn_bytes=100)
    for size in (0, 7, 100):
        assert link.slowed(1.3).copy_s(size) == pytest.approx(1.3 * link.copy_s(size))
    assert link.slowed(1.3).flight_s(100) == pytest.approx(1.3 * link.flight_s(100))
