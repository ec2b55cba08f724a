"""Where task sets come from: the families of docs/design/theory.md, or real models' shapes.

The product's profiler measures real shapes: zoo.py on `cpu`, one picture or sentence a job, and
tests.gpu.bench.shapes on an H200, captured graphs, mostly eight a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.bench.preemption import drawn
from tests.simulation.tasksets import PERIODS_S, device_for, uunifast

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import YIELDING_WHILE_WAITING
from tierline_api.layout import LayerShape, fold_compute, lay_out
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

MIB = 1 << 20
CPU_EXTENT_BYTES = 2 * MIB
CPU_LINK = LinkRate(7.9e9, 1e-5)
"""From DRAM, as measured by tests.bench.streaming on the machine of the shapes."""


@dataclass(frozen=True)
class Shape:
    """A model: bytes and compute time (seconds) of each layer in order; pinned ones stay."""

    name: str
    layers: tuple[tuple[int, float, bool], ...]
    workspace_bytes: int

    @property
    def compute_s(self) -> float:
        """Of a job with all weights resident."""
        return sum(seconds for _, seconds, _ in self.layers)


@dataclass(frozen=True)
class Source:
    """Draws sets, the same for the same number and utilisation."""

    about: str
    draw: Callable[[int, float], list[TaskDemand]]
    device_for: Callable[[list[TaskDemand], float], DeviceCapacity]
    """A device with the set's demand over a ratio as fast memory."""


def as_on(kind: DeviceKind, device: DeviceCapacity) -> DeviceCapacity:
    """The device with jobs that wait for data as they do on that kind."""
    return replace(device, yields_while_waiting=kind in YIELDING_WHILE_WAITING)


def families(_: Path) -> Source:
    """Synthetic models of four families, as in docs/design/theory.md, on a GPU."""

    def gpu_for(tasks: list[TaskDemand], memory_ratio: float) -> DeviceCapacity:
        return as_on(DeviceKind.CUDA, device_for(tasks, memory_ratio))

    return Source("four synthetic families, 32 MiB extents, 55 GB/s, a GPU", drawn, gpu_for)


def on_cpu(folder: Path) -> Source:
    """The models of zoo.py as measured."""
    measured = json.loads((folder / "shapes-cpu.json").read_text())
    return _measured(measured, DeviceKind.CPU, "cpu", CPU_EXTENT_BYTES, CPU_LINK, 10.0)


def on_h200(folder: Path) -> Source:
    """The models of tests/gpu/models.py, and the link, as tests.gpu.bench.shapes measured them."""
    measured = json.loads((folder / "shapes-h200.json").read_text())
    link = LinkRate(measured["link"]["bandwidth_bytes_per_s"], measured["link"]["overhead_s"])
    size, name = measured["extent_bytes"], measured["gpu"]
    return _measured(measured, DeviceKind.CUDA, name, size, link, 1.0)


def _measured(
    measured: Mapping[str, Any],
    kind: DeviceKind,
    device: str,
    extent_bytes: int,
    link: LinkRate,
    scale: float,
) -> Source:
    shapes = [
        Shape(name, tuple(map(tuple, row["layers"])), row["workspace_bytes"])
        for name, row in measured["shapes"].items()
    ]
    return Source(
        f"{len(shapes)} models measured on {device}, {extent_bytes / MIB:.0f} MiB extents, "
        f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s",
        partial(from_shapes, shapes, extent_bytes, scale),
        partial(_device, kind, link),
    )


SOURCES: Final[Mapping[str, Callable[[Path], Source]]] = {
    "families": families,
    "cpu": on_cpu,
    "h200": on_h200,
}
"""By name; each is given the folder of the benchmarks' results."""


def from_shapes(
    shapes: Sequence[Shape], extent_bytes: int, scale: float, number: int, load: float
) -> list[TaskDemand]:
    """Five to ten of the shapes at utilisation `load`; periods divide 12 s times `scale`."""
    rng = np.random.default_rng((number, round(load * 100), 13))
    while True:
        count = int(rng.integers(5, 11))
        chosen = [shapes[int(i)] for i in rng.integers(0, len(shapes), count)]
        wanted = [
            s.compute_s / max(u, 1e-6)
            for s, u in zip(chosen, uunifast(rng, load, count), strict=True)
        ]
        if any(period > 12 * scale for period in wanted):
            continue
        grid = PERIODS_S * scale
        periods = [float(grid[np.argmin(np.abs(np.log(grid / period)))]) for period in wanted]
        actual = sum(s.compute_s / period for s, period in zip(chosen, periods, strict=True))
        faster = load / actual
        # Utilisation is met exactly by scaling all times a little, as rounding periods changed it.
        tasks = [
            _task(index, shape, period, faster, extent_bytes, rng)
            for index, (shape, period) in enumerate(zip(chosen, periods, strict=True))
        ]
        if all(sum(task.compute_s) <= task.deadline_s for task in tasks):
            return tasks


def _task(
    index: int,
    shape: Shape,
    period_s: float,
    faster: float,
    extent_bytes: int,
    rng: np.random.Generator,
) -> TaskDemand:
    layers = [LayerShape(size // 64 * 64, pinned) for size, _, pinned in shape.layers]
    times = [seconds * faster for _, seconds, _ in shape.layers]
    deadline_s = max(sum(times) * 1.001, period_s * float(rng.uniform(0.6, 1.0)))
    return TaskDemand(
        name=f"{shape.name}-{index}",
        domain="default",
        period_s=period_s,
        deadline_s=min(deadline_s, period_s),
        layout=lay_out(layers, extent_bytes),
        compute_s=fold_compute(layers, times),
        workspace_bytes=shape.workspace_bytes,
        activation_bytes=min(shape.workspace_bytes, int(rng.uniform(1, 64) * 1e6)),
    )


def _device(
    kind: DeviceKind, link: LinkRate, tasks: list[TaskDemand], memory_ratio: float
) -> DeviceCapacity:
    weights = sum(task.layout.weight_bytes for task in tasks)
    need = weights + max(task.workspace_bytes for task in tasks)
    tiers = {"dram": TierCapacity(1 << 45, link)}
    return as_on(kind, DeviceCapacity(int(need / memory_ratio), tiers))
