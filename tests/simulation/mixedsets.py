"""Small random sets of everything at once: criticalities, domains, policies, arenas, two tiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

EXTENT_BYTES = 10**6
POLICIES = (SwapPolicy.AUTO, SwapPolicy.AUTO, *SwapPolicy)
CRITICALITIES = (Criticality.HARD,) * 3 + (Criticality.BEST_EFFORT,)


def mixed_set(rng: np.random.Generator, *, most_arenas: int = 2) -> list[TaskDemand]:
    """Two to five tasks of one or more arenas; some layers empty, some pinned."""
    return [_task(rng, number, most_arenas) for number in range(int(rng.integers(2, 6)))]


def mixed_device(rng: np.random.Generator, tasks: Sequence[TaskDemand]) -> DeviceCapacity:
    """Room for a fifth of the weights up to all of them; a small fast tier and a large slow one."""
    extents = sum(task.layout.extent_count for task in tasks)
    room = int((extents * rng.uniform(0.2, 1.1) + 4) * EXTENT_BYTES)
    small = int(rng.integers(1, extents + 2)) * EXTENT_BYTES
    return DeviceCapacity(
        room,
        {
            "dram": TierCapacity(small, LinkRate(400e6, 1e-4)),
            "nvme": TierCapacity(10**12, LinkRate(150e6, 2e-4)),
        },
        dispatch_s=float(rng.choice([0.0, 0.0005])),
        gate_s=float(rng.choice([0.0, 0.0001])),
    )


def _task(rng: np.random.Generator, number: int, most_arenas: int) -> TaskDemand:
    shapes = []
    for arena in range(int(rng.integers(1, most_arenas + 1))):
        if rng.random() < 0.2:
            shapes.append(LayerShape(int(rng.integers(1, 2 * EXTENT_BYTES)), True, arena))
        for _ in range(int(rng.integers(1, 10))):
            size = (0, rng.integers(1, 4 * EXTENT_BYTES), rng.integers(1, EXTENT_BYTES))[
                rng.integers(3)
            ]
            shapes.append(LayerShape(int(size), arena=arena))
    layout = lay_out(shapes, EXTENT_BYTES)
    period_s = float(rng.choice([0.1, 0.2, 0.3, 0.5, 1.0]))
    times = rng.random(layout.layer_count) ** 3 + 0.01
    times *= period_s * rng.uniform(0.02, 0.25) / times.sum()
    return TaskDemand(
        name=f"task-{number}",
        domain=str(rng.choice(["a", "a", "b"])),
        period_s=period_s,
        deadline_s=period_s * float(rng.uniform(0.4, 1.0)),
        layout=layout,
        compute_s=tuple(float(seconds) for seconds in times),
        workspace_bytes=int(rng.integers(0, 3 * EXTENT_BYTES)),
        tiers=("dram", "nvme") if rng.random() < 0.5 else ("nvme", "dram"),
        policy=POLICIES[int(rng.integers(len(POLICIES)))],
        criticality=CRITICALITIES[int(rng.integers(len(CRITICALITIES)))],
        activation_bytes=None if rng.random() < 0.5 else int(rng.integers(0, EXTENT_BYTES)),
    )
