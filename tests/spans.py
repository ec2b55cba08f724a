"""The least ring in which a job of a layout can stream all of it."""

from __future__ import annotations

from tierline_api.layout import ArenaLayout


def largest_span(layout: ArenaLayout) -> int:
    """Most extents that a single layer reads; 0 without layers."""
    pairs = zip(layout.first_extent, layout.last_extent, strict=True)
    return max((last - first + 1 for first, last in pairs), default=0)
