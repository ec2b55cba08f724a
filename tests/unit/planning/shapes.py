"""Builders of layouts and tasks for the tests of planning and admission."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tierline_api.layout import ArenaLayout, LayerShape, lay_out


def layout_of(sizes: Sequence[int], extent_bytes: int = 100) -> ArenaLayout:
    """One arena of layers of these sizes, nothing pinned."""
    return lay_out([LayerShape(size) for size in sizes], extent_bytes)


def random_layout(rng: random.Random, *, arenas: int = 1, pinned: bool = True) -> ArenaLayout:
    """Up to 12 layers an arena, of 0 to 4 extents each."""
    layers = []
    for arena in range(arenas):
        if pinned and rng.random() < 0.3:
            layers.append(LayerShape(rng.randint(1, 250), pinned=True, arena=arena))
        layers += [
            LayerShape(rng.choice([0, rng.randint(1, 400), rng.randint(1, 90)]), arena=arena)
            for _ in range(rng.randint(1, 12))
        ]
    return lay_out(layers, 100)
