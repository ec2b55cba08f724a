"""Layers in extents: the rule that plugin, planner and agent share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spans import largest_span

from tierline_api.layout import LayerShape, LayoutError, fold_compute, lay_out


def test_layers_follow_each_other_without_gaps() -> None:
    layout = lay_out([LayerShape(150), LayerShape(100), LayerShape(0), LayerShape(60)], 100)

    assert layout.extent_sizes == (100, 100, 100, 10)
    assert layout.first_extent == (0, 1, 2, 2)
    assert layout.last_extent == (1, 2, 1, 3)
    assert layout.last_layer == (0, 1, 3, 3)
    assert layout.layer_offset == (0, 150, 250, 250)
    assert largest_span(layout) == 2


def test_pinned_bytes_come_first_and_share_the_extent_where_they_end() -> None:
    layout = lay_out([LayerShape(90), LayerShape(130, pinned=True), LayerShape(60)], 100)

    assert layout.pinned_extents == {0, 1}
    assert layout.first_extent == (1, 2)
    assert layout.last_extent == (2, 2)
    assert layout.last_layer == (-1, 0, 1)
    assert layout.arena_pinned_bytes == (130,)


def test_each_arena_starts_at_an_extent_boundary() -> None:
    layout = lay_out(
        [LayerShape(50), LayerShape(120, arena=2), LayerShape(30, pinned=True, arena=2)], 100
    )

    assert layout.arena_first_extent == (0, 1, 1)
    assert layout.extent_sizes == (50, 100, 50)
    assert layout.first_extent == (0, 1)
    assert layout.pinned_extents == {1}
    assert list(layout.extents_of_arena(1)) == []
    assert list(layout.extents_of_arena(2)) == [1, 2]


def test_no_layers_make_no_extents() -> None:
    layout = lay_out([], 100)
    assert (layout.extent_count, layout.layer_count, largest_span(layout)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("layers", "extent_bytes", "says"),
    [
        ([LayerShape(1)], 0, "extents of 0 bytes"),
        ([LayerShape(-1)], 8, "layer 0 has -1 bytes"),
        ([LayerShape(1, arena=16)], 8, "arenas are 0..15"),
        ([LayerShape(1, arena=1), LayerShape(1)], 8, "group the layers by arena"),
    ],
)
def test_what_cannot_be_laid_out_is_named(
    layers: list[LayerShape], extent_bytes: int, says: str
) -> None:
    with pytest.raises(LayoutError, match=says):
        lay_out(layers, extent_bytes)


@pytest.mark.parametrize(
    ("pinned", "seconds", "folded"),
    [
        ([False, False], [1.0, 2.0], (1.0, 2.0)),
        ([True, False, True, False], [1.0, 2.0, 4.0, 8.0], (3.0, 12.0)),
        ([False, True], [1.0, 2.0], (3.0,)),
        ([True, True], [1.0, 2.0], (3.0,)),
        ([], [], ()),
    ],
)
def test_compute_of_pinned_entries_is_never_lost(
    pinned: list[bool], seconds: list[float], folded: tuple[float, ...]
) -> None:
    assert fold_compute([LayerShape(8, pinned=p) for p in pinned], seconds) == folded


def test_compute_times_must_match_the_layers() -> None:
    with pytest.raises(LayoutError, match="one each"):
        fold_compute([LayerShape(8)], [])


@given(
    st.lists(st.tuples(st.integers(0, 500), st.booleans(), st.integers(0, 2)), max_size=30),
    st.sampled_from([64, 100, 256]),
)
def test_every_byte_has_one_place(shapes: list[tuple[int, bool, int]], extent_bytes: int) -> None:
    layers = [LayerShape(*shape) for shape in sorted(shapes, key=lambda shape: shape[2])]
    layout = lay_out(layers, extent_bytes)

    assert layout.weight_bytes == sum(layer.bytes for layer in layers)
    gated = [layer for layer in layers if not layer.pinned]
    for index, layer in enumerate(gated):
        base = layout.arena_first_extent[layer.arena] * extent_bytes
        begin = base + layout.layer_offset[index]
        assert layout.first_extent[index] == begin // extent_bytes
        if layer.bytes:
            assert layout.last_extent[index] == (begin + layer.bytes - 1) // extent_bytes
        else:
            assert layout.last_extent[index] < layout.first_extent[index]
    for arena in range(layout.arena_count):
        extents = layout.extents_of_arena(arena)
        held = -(-layout.arena_pinned_bytes[arena] // extent_bytes)
        assert layout.pinned_extents & set(extents) == set(extents[:held])
        readers = [layout.last_layer[extent] for extent in extents[held:]]
        assert readers == sorted(readers)
        assert all(reader >= 0 for reader in readers)


SHAPES = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 50)), min_size=1)


@given(SHAPES)
def test_each_arena_has_the_time_of_its_own_pinned_entries(
    entries: list[tuple[int, bool, int]],
) -> None:
    """How often an arena runs in a job is its own: none of its time is another one's."""
    ordered = sorted(entries, key=lambda entry: entry[0])
    shapes = [LayerShape(8, pinned, arena) for arena, pinned, _ in ordered]
    folded = fold_compute(shapes, [float(seconds) for *_, seconds in ordered])
    assert sum(folded) == sum(seconds for *_, seconds in ordered)
    gated = [shape.arena for shape in shapes if not shape.pinned]
    if set(gated) == {shape.arena for shape in shapes}:
        for arena in set(gated):
            own = sum(seconds for one, _, seconds in ordered if one == arena)
            assert sum(f for f, one in zip(folded, gated, strict=True) if one == arena) == own
