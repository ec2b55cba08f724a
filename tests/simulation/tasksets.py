"""Random task sets as in docs/design/theory.md: model families, UUniFast, rounded periods.

Four families: small CNNs (a quarter of them with most bytes in the last layers), transformers and
detectors, diffusion and speech models, and large language models. Compute shares by UUniFast
(Bini, Buttazzo 2005); periods are divisors of 12 s from 10 ms on; deadlines 0.6 to 1 of the period.
Extents are 32 MiB, the link is PCIe at 55 GB/s with 10 us per extent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierline_api.layout import LayerShape, lay_out
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

Floats = npt.NDArray[np.float64]

EXTENT_BYTES = 32 << 20
LINK = LinkRate(55e9, 1e-5)
PERIODS_S = np.array([d / 1000 for d in range(10, 12001) if 12000 % d == 0])
SHARES = (0.35, 0.3, 0.2, 0.15)


@dataclass(frozen=True)
class Family:
    """Ranges from which a model is drawn, log-uniformly."""

    weights_mb: tuple[float, float]
    compute_ms: tuple[float, float]
    workspace_mb: tuple[float, float]


FAMILIES = (
    Family((50, 300), (2, 12), (24, 160)),
    Family((200, 1400), (4, 25), (64, 512)),
    Family((1200, 5200), (15, 60), (256, 1500)),
    Family((2000, 15000), (4, 60), (128, 1024)),
)


def random_set(
    rng: np.random.Generator, load: float, *, least: int = 5, most: int = 10
) -> list[TaskDemand]:
    """`least`..`most` tasks with compute times that make up `load` of the device."""
    while True:
        drawn = _draw(rng, load, int(rng.integers(least, most + 1)))
        if drawn is not None:
            return drawn


def device_for(tasks: list[TaskDemand], memory_ratio: float) -> DeviceCapacity:
    """A device with (weights + the largest workspace) / ratio of fast memory."""
    weights = sum(task.layout.weight_bytes for task in tasks)
    need = weights + max(task.workspace_bytes for task in tasks)
    tier = TierCapacity(1 << 45, LINK)
    return DeviceCapacity(int(need / memory_ratio), {"dram": tier})


def _draw(rng: np.random.Generator, load: float, count: int) -> list[TaskDemand] | None:
    kinds = rng.choice(4, count, p=SHARES)
    shares = uunifast(rng, load, count)
    models = []
    for kind, share in zip(kinds, shares, strict=True):
        family = FAMILIES[int(kind)]
        compute_s = log_uniform(rng, family.compute_ms) / 1e3
        period_s = compute_s / max(share, 1e-6)
        if period_s > 12 or period_s < compute_s * 1.05:
            return None
        rounded = PERIODS_S[np.argmin(np.abs(np.log(PERIODS_S / period_s)))]
        weights = log_uniform(rng, family.weights_mb) * 1e6
        workspace = log_uniform(rng, family.workspace_mb) * 1e6
        models.append((int(kind), compute_s, float(rounded), weights, int(workspace)))
    scale = load / sum(model[1] / model[2] for model in models)
    tasks = []
    for index, (kind, compute_s, period_s, weights, workspace) in enumerate(models):
        scaled = compute_s * scale
        deadline_s = min(max(scaled * 1.001, period_s * rng.uniform(0.6, 1.0)), period_s)
        if scaled > deadline_s:
            return None
        compute, sizes = layers(rng, kind, scaled, weights)
        shapes = [LayerShape(int(size) // 64 * 64) for size in sizes]
        tasks.append(
            TaskDemand(
                name=f"task-{index}",
                domain="default",
                period_s=period_s,
                deadline_s=float(deadline_s),
                layout=lay_out(shapes, EXTENT_BYTES),
                compute_s=tuple(float(seconds) for seconds in compute),
                workspace_bytes=workspace,
            )
        )
    return tasks


def uunifast(rng: np.random.Generator, load: float, count: int) -> list[float]:
    """Shares that add up to `load`, uniformly among all that do."""
    shares, left = [], load
    for index in range(count - 1):
        rest = left * rng.random() ** (1 / (count - 1 - index))
        shares.append(left - rest)
        left = rest
    return [*shares, left]


def log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(np.log(bounds[0]), np.log(bounds[1]))))


def layers(
    rng: np.random.Generator, kind: int, compute_s: float, weights: float
) -> tuple[Floats, Floats]:
    """Compute times and bytes per layer, with the shape of the family."""
    if kind == 0:
        count = int(rng.integers(18, 51))
        depth = np.arange(count) / count
        sizes = np.exp(2.5 * depth) * rng.uniform(0.5, 1.5, count)
        times = (1.3 - 0.6 * depth) * rng.uniform(0.6, 1.4, count)
        if rng.random() < 0.25:  # VGG-like: most bytes in three last, fast layers
            share = rng.uniform(0.6, 0.8)
            front = sizes[:-3].sum()
            sizes[-3:] = front * share / (1 - share) * np.array([0.7, 0.2, 0.1])
            times[-3:] *= 0.3
    elif kind == 1:
        count = int(rng.integers(12, 33))
        sizes, times = rng.uniform(0.9, 1.1, count), rng.uniform(0.9, 1.1, count)
        sizes[0] = sizes.sum() * rng.uniform(0.03, 0.15)
        times[0] *= 0.2
    elif kind == 2:
        count = int(rng.integers(24, 65))
        bump = np.exp(-((((np.arange(count) + 0.5) / count - 0.5) / 0.22) ** 2))
        sizes = (0.2 + bump) * rng.uniform(0.6, 1.4, count)
        times = (1.2 - 0.8 * bump) * rng.uniform(0.6, 1.4, count)
    else:
        count = int(rng.integers(24, 49))
        sizes, times = rng.uniform(0.95, 1.05, count), rng.uniform(0.95, 1.05, count)
        sizes[0] = sizes.sum() * rng.uniform(0.02, 0.06)
        times[0] *= 0.1
        sizes[-1] = sizes.sum() * rng.uniform(0.02, 0.06)
        times[-1] *= 1.5
    sizes = np.minimum(sizes / sizes.sum() * weights, 600e6)
    return times / times.sum() * compute_s, sizes * (weights / sizes.sum())
