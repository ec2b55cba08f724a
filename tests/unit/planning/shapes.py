"""Builders of layouts and tasks for the tests of planning and admission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np

from tierline_api.devices.fast_memory import Contexts
from tierline_api.layout import ArenaLayout, LayerShape, lay_out
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand, TierCapacity


class MoreOfTask(TypedDict, total=False):
    """What a test may say of a task besides its times and size."""

    domain: str
    workspace_bytes: int
    tiers: Sequence[str]
    policy: SwapPolicy
    criticality: Criticality
    mean_compute_s: Sequence[float]
    reserved_bytes: int
    in_extents: bool
    weights_digest: str


class MoreOfDevice(TypedDict, total=False):
    """What a test may say of a device besides its size."""

    tiers: dict[str, TierCapacity]
    margins: Margins
    dispatch_s: float
    gate_s: float
    blocked_extents: int
    workspaces_overlay: bool
    contexts: Contexts


def layout_of(sizes: Sequence[int], extent_bytes: int = 100) -> ArenaLayout:
    """One arena of layers of these sizes, nothing pinned."""
    return lay_out([LayerShape(size) for size in sizes], extent_bytes)


def random_layout(rng: np.random.Generator, *, arenas: int = 1, pinned: bool = True) -> ArenaLayout:
    """Up to 12 layers an arena, of 0 to 4 extents each."""
    layers = []
    for arena in range(arenas):
        if pinned and rng.random() < 0.3:
            layers.append(LayerShape(int(rng.integers(1, 250)), pinned=True, arena=arena))
        for _ in range(int(rng.integers(1, 13))):
            size = (0, int(rng.integers(1, 400)), int(rng.integers(1, 90)))[rng.integers(3)]
            layers.append(LayerShape(size, arena=arena))
    return lay_out(layers, 100)


LINK = LinkRate(100e6)


def task(
    name: str,
    period_ms: float,
    deadline_ms: float,
    compute_ms: float,
    *,
    megabytes: int = 10,
    layers: int = 10,
    **more: Unpack[MoreOfTask],
) -> TaskDemand:
    """A task of equal layers in extents of 1 MB; one extent takes 10 ms over LINK."""
    layout = lay_out([LayerShape(megabytes * 10**6 // layers)] * layers, 10**6)
    fields: MoreOfTask = {"domain": "default", **more}
    return TaskDemand(
        name=name,
        period_s=period_ms / 1000,
        deadline_s=deadline_ms / 1000,
        layout=layout,
        compute_s=(compute_ms / 1000 / layers,) * layers,
        **fields,
    )


def device(megabytes: float, **more: Unpack[MoreOfDevice]) -> DeviceCapacity:
    """Fast memory of so many MB and a roomy dram tier over LINK."""
    fields: MoreOfDevice = {"tiers": {"dram": TierCapacity(10**9, LINK)}, **more}
    return DeviceCapacity(fast_bytes=int(megabytes * 10**6), **fields)
