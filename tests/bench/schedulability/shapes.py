"""Where task sets come from: the families of the realtime theory notes, or real models' shapes.

The product's profiler measures real shapes: zoo.py on `cpu`, one picture or sentence a job, and
tests.gpu.shapes on a GPU, captured graphs, mostly eight a job. Until an H200's are there, some are
*derived*, except for three anchors whose weights and graph times were measured on one: a layer
list is made of equal blocks, and a time is the anchor's, scaled by the floating-point operations of
a job (per weight and token for transformers, as published for convolutional networks).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.bench.preemption import drawn
from tests.simulation.tasksets import EXTENT_BYTES, PERIODS_S, device_for, uunifast

from tierline_api.layout import LayerShape, fold_compute, lay_out
from tierline_operator.planning.pipeline import LinkRate
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
    """A device whose fast memory is the set's demand over a ratio."""


def families(_: Path) -> Source:
    """Synthetic models of four families, as in the realtime theory notes."""
    return Source("four synthetic families, 32 MiB extents, 55 GB/s", drawn, device_for)


def on_cpu(folder: Path) -> Source:
    """The models of zoo.py as measured."""
    measured = json.loads((folder / "shapes-cpu.json").read_text())
    return _measured(measured, "cpu", CPU_EXTENT_BYTES, CPU_LINK, 10.0)


def on_h200(folder: Path) -> Source:
    """The models of tests/gpu/models.py, and the link, as tests.gpu.shapes measured them."""
    measured = json.loads((folder / "shapes-h200.json").read_text())
    link = LinkRate(measured["link"]["bandwidth_bytes_per_s"], measured["link"]["overhead_s"])
    return _measured(measured, measured["gpu"], measured["extent_bytes"], link, 1.0)


def _measured(
    measured: Mapping[str, Any], device: str, extent_bytes: int, link: LinkRate, scale: float
) -> Source:
    shapes = [
        Shape(name, tuple(map(tuple, row["layers"])), row["workspace_bytes"])
        for name, row in measured["shapes"].items()
    ]
    return Source(
        f"{len(shapes)} models measured on {device}, {extent_bytes / MIB:.0f} MiB extents, "
        f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s",
        partial(from_shapes, shapes, extent_bytes, scale),
        partial(_device, link),
    )


def derived_h200(_: Path) -> Source:
    """Published architectures with times derived from what was measured on an H200."""
    shapes = [_blocks(*row) for row in H200]
    return Source(
        f"{len(shapes)} models, times DERIVED (three anchors measured), 32 MiB extents, 55 GB/s",
        partial(from_shapes, shapes, EXTENT_BYTES, 1.0),
        device_for,
    )


SOURCES: Final[Mapping[str, Callable[[Path], Source]]] = {
    "families": families,
    "cpu": on_cpu,
    "real": on_h200,
    "h200-derived": derived_h200,
}
"""By name; each is given the folder of the benchmarks' results."""

H200: Final = (
    # name, weights MiB, blocks, shares of first and last layer, job ms, workspace MiB; the job
    ("resnet-152", 115, 50, (0.0, 0.04), 3.80, 160),  # batch 8; measured
    ("vit-giant", 1931, 40, (0.01, 0.0), 9.5, 512),  # batch 8; measured
    ("llama-7b", 12853, 32, (0.02, 0.02), 16.2, 512),  # 512 tokens; measured
    ("resnet-50", 49, 16, (0.0, 0.08), 1.36, 120),  # batch 8: 4.1 of 11.5 GFLOP
    ("efficientnet-b7", 127, 55, (0.0, 0.04), 12.2, 320),  # batch 8: 37 of 11.5 GFLOP
    ("vit-base", 165, 12, (0.01, 0.0), 0.62, 120),  # batch 8, 197 of 257 tokens
    ("vit-large", 580, 24, (0.01, 0.0), 2.19, 200),  # the same
    ("bert-large", 639, 24, (0.09, 0.0), 6.4, 256),  # 8 x 512 tokens, by Llama's rate
    ("whisper-large", 2944, 64, (0.02, 0.04), 11.0, 512),  # 1,500 tokens, by Llama's rate
    ("gpt2-xl", 2975, 48, (0.05, 0.0), 3.75, 256),  # 512 tokens
    ("sdxl-unet", 4900, 70, (0.01, 0.01), 27.8, 1500),  # one guided step: 12 TFLOP at 430 TFLOP/s
    ("llama-3b", 6130, 28, (0.06, 0.06), 7.7, 384),  # 512 tokens
    ("llama-13b", 24830, 40, (0.01, 0.01), 31.3, 768),  # 512 tokens
)


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


def _device(link: LinkRate, tasks: list[TaskDemand], memory_ratio: float) -> DeviceCapacity:
    weights = sum(task.layout.weight_bytes for task in tasks)
    need = weights + max(task.workspace_bytes for task in tasks)
    return DeviceCapacity(int(need / memory_ratio), {"dram": TierCapacity(1 << 45, link)})


def _blocks(
    name: str,
    weights_mib: float,
    blocks: int,
    ends: tuple[float, float],
    job_ms: float,
    workspace_mib: float,
) -> Shape:
    """A first and a last layer with these shares of the weights, and equal blocks between them."""
    first, last = ends
    weights, compute_s = weights_mib * MIB, job_ms / 1e3
    inner = weights * (1 - first - last) / blocks
    layers = [(int(inner), compute_s * 0.97 / blocks, False)] * blocks
    layers = [
        (int(weights * first), compute_s * 0.01, False),
        *layers,
        (int(weights * last), compute_s * 0.02, False),
    ]
    return Shape(name, tuple(layers), int(workspace_mib * MIB))
