"""Many tasks of one device: families of sets for what must be answered soon, whatever the answer.

Models are those of tasksets.py and variations of them; a task's period does not follow from its
model, so that a set of hundreds can be drawn at any load. Times are scaled to the load that is
asked for. The same seed draws the same set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.simulation.tasksets import EXTENT_BYTES, FAMILIES, LINK, SHARES, layers, log_uniform

from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

Draw = Callable[[np.random.Generator, int], TaskDemand]


def _mixed(rng: np.random.Generator, number: int) -> TaskDemand:
    """All families of models, periods of 0.1 to 12 s."""
    return _model(rng, number, int(rng.choice(4, p=SHARES)), (0.1, 12.0))


def _small(rng: np.random.Generator, number: int) -> TaskDemand:
    """Small CNNs of short periods."""
    return _model(rng, number, 0, (0.05, 2.0))


def _domains(rng: np.random.Generator, number: int) -> TaskDemand:
    """Small and middle models of eight trust domains, each with a ring of its own."""
    drawn = _model(rng, number, int(rng.integers(2)), (0.1, 12.0))
    return replace(drawn, domain=f"domain-{number % 8}")


def _giant(rng: np.random.Generator, number: int) -> TaskDemand:
    """Models of which one layer has most of the weights and of the time."""
    return _model(rng, number, 1, (0.5, 12.0), giant=0.7)


def _replicas(_: np.random.Generator, number: int) -> TaskDemand:
    """One model again and again."""
    return replace(_model(np.random.default_rng(7), number, 1, (2.0, 2.0)), deadline_s=1.5)


CROWDS: dict[str, Draw] = {
    "mixed": _mixed,
    "small": _small,
    "domains": _domains,
    "giant layers": _giant,
    "replicas": _replicas,
}


def crowd(family: str, seed: int, count: int, load: float) -> list[TaskDemand]:
    """`count` tasks of that family with compute times that make up `load` of the device."""
    rng = np.random.default_rng(seed)
    drawn = [CROWDS[family](rng, number) for number in range(count)]
    scale = load / sum(sum(task.compute_s) / task.period_s for task in drawn)
    return [
        replace(task, compute_s=tuple(seconds * scale for seconds in task.compute_s))
        for task in drawn
    ]


def softened(tasks: list[TaskDemand], share: float, seed: int) -> list[TaskDemand]:
    """The same tasks, of which that share is Soft, with means of 30 to 100 % of their worst."""
    rng = np.random.default_rng(seed)
    means = rng.uniform(0.3, 1.0, len(tasks)).tolist()
    return [
        replace(
            task,
            criticality=Criticality.SOFT,
            mean_compute_s=tuple(seconds * mean for seconds in task.compute_s),
        )
        if rng.random() < share
        else task
        for task, mean in zip(tasks, means, strict=True)
    ]


def crowded(tasks: list[TaskDemand], memory_ratio: float, *ways: Scheduling) -> DeviceCapacity:
    """A device with (weights + the largest workspace) / ratio of fast memory."""
    weights = sum(task.layout.weight_bytes for task in tasks)
    need = weights + max(task.workspace_bytes for task in tasks)
    supports = frozenset(ways or Scheduling)
    tier = TierCapacity(1 << 50, LINK)
    return DeviceCapacity(int(need / memory_ratio), {"dram": tier}, supports=supports)


def _model(
    rng: np.random.Generator,
    number: int,
    kind: int,
    periods_s: tuple[float, float],
    giant: float = 0.0,
) -> TaskDemand:
    family = FAMILIES[kind]
    period_s = round(log_uniform(rng, periods_s), 2)
    weights = log_uniform(rng, family.weights_mb) * 1e6
    times, sizes = layers(rng, kind, log_uniform(rng, family.compute_ms) / 1e3, weights)
    if giant:
        at = int(rng.integers(len(sizes)))
        sizes *= 1 - giant
        times *= 1 - giant
        sizes[at] += giant * weights
        times[at] += giant * times.sum() / (1 - giant)
    return TaskDemand(
        name=f"task-{number}",
        domain="default",
        period_s=period_s,
        deadline_s=round(period_s * rng.uniform(0.6, 1.0), 3),
        layout=lay_out([LayerShape(max(64, int(size) // 64 * 64)) for size in sizes], EXTENT_BYTES),
        compute_s=tuple(float(seconds) for seconds in times),
        workspace_bytes=int(log_uniform(rng, family.workspace_mb) * 1e6),
    )
