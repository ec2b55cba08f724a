"""The Pareto curve: what memory buys, and what no plan may stream."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.unit.planning.shapes import layout_of, random_layout

from tierline_api.layout import LayerShape, lay_out
from tierline_operator.planning.jobs.curve import forced_residents, paced, pareto
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline

UNIT = LinkRate(100.0)


def pipeline_of(sizes: list[int], compute: list[float], delay: float = 0.0) -> Pipeline:
    layout = layout_of(sizes)
    return Pipeline(layout, compute, [0] * layout.extent_count, [UNIT], delay)


def test_memory_rises_and_job_time_falls_to_the_compute_time() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        layout = random_layout(rng, arenas=int(rng.integers(1, 3)))
        compute = [float(x) for x in rng.random(layout.layer_count)]
        pipeline = Pipeline(layout, compute, [0] * layout.extent_count, [UNIT], 0.5)
        ring = int(rng.integers(1, 6))
        points = pareto(pipeline, ring)
        for a, b in pairwise(points):
            assert a.resident_extents < b.resident_extents
            assert a.total_s > b.total_s
        assert points[-1].total_s == pytest.approx(sum(compute))
        for point in points:
            assert layout.pinned_extents <= point.resident
            assert len(point.resident) + point.streamed_extents == layout.extent_count
            if point.streamed_extents:
                assert pipeline.total_s(point.resident, ring) == point.total_s


def test_spread_residency_beats_a_prefix_of_the_same_size_where_copies_dominate() -> None:
    sizes, compute = [100] * 40, [0.5] * 40
    pipeline = pipeline_of(sizes, compute)
    half = [point for point in pareto(pipeline, 2) if point.resident_extents <= 20][-1]
    prefix = pipeline.total_s(frozenset(range(20)), 2)
    assert half.total_s < 0.85 * prefix
    assert half.total_s <= 1.1 * max(20.0, half.streamed_extents)


def test_a_paced_set_meets_its_aim_where_the_link_allows() -> None:
    pipeline = pipeline_of([100] * 40, [0.5] * 40)
    for aim in (20.0, 25.0, 30.0, 39.0):
        held = paced(pipeline, 4, frozenset(), aim)
        assert pipeline.total_s(held, 4) <= aim + 1e-9


def test_no_ring_means_fully_resident() -> None:
    (point,) = pareto(pipeline_of([100, 100], [1.0, 1.0]), 0)
    assert (point.resident_extents, point.total_s, point.streamed_extents) == (2, 2.0, 0)


def test_a_layer_wider_than_the_ring_is_kept_in_part() -> None:
    pipeline = pipeline_of([100, 500, 100], [1.0] * 3)
    assert forced_residents(pipeline, 2) == {1, 2, 3}
    least = pareto(pipeline, 2)[0]
    assert least.resident_extents == 3


def test_pinned_extents_are_in_every_set() -> None:
    layout = lay_out([LayerShape(150, pinned=True), LayerShape(400)], 100)
    pipeline = Pipeline(layout, [1.0], [0] * layout.extent_count, [UNIT])
    assert all({0, 1} <= point.resident for point in pareto(pipeline, 5))


def test_reserved_extents_leave_smaller_points_out() -> None:
    pipeline = pipeline_of([100] * 10, [0.1] * 10)
    assert pareto(pipeline, 2)[0].resident_extents == 0
    assert pareto(pipeline, 2, least_extents=4)[0].resident_extents >= 4
    assert pareto(pipeline, 2, least_extents=99)[0].resident_extents == 10


def test_the_start_delay_is_part_of_every_streamed_point_only() -> None:
    plain = pareto(pipeline_of([100] * 4, [0.1] * 4), 2)
    blocked = pareto(pipeline_of([100] * 4, [0.1] * 4, delay=1.0), 2)
    assert blocked[0].total_s == pytest.approx(plain[0].total_s + 1.0)
    assert blocked[-1].total_s == plain[-1].total_s


def test_what_has_no_layers_is_resident_whatever_the_ring() -> None:
    """Such a task may share a trust domain, and so a ring, with one that streams."""
    layout = lay_out([LayerShape(150, pinned=True)], 100)
    (point,) = pareto(Pipeline(layout, [1.0], [0, 0], [UNIT]), 5)
    assert (point.resident_extents, point.total_s) == (2, 1.0)
