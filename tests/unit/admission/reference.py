"""The demand test written as its theorem reads, with exact fractions: slow, and nothing shared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tierline_operator.admission.demand import SporadicTask


@dataclass(frozen=True)
class Worst:
    ok: bool
    late_s: float


def enumerate_all(tasks: Sequence[SporadicTask], *, blocking: bool = True) -> Worst:
    """Every t = k T + D up to a hyperperiod and the longest deadline."""
    due = [task for task in tasks if task.deadline_s is not None]
    times = [(_exact(t.period_s), _exact(t.deadline_s or 0), _exact(t.cost_s)) for t in due]
    if sum(c / t for t, _, c in times) > 1:
        return Worst(False, math.inf)
    horizon = _common(t for t, _, _ in times) + max(d for _, d, _ in times)
    points = sorted({d + k * t for t, d, _ in times for k in range(int((horizon - d) / t) + 1)})
    worst = max(
        sum(max(0, math.floor((x - d) / t) + 1) * c for t, d, c in times)
        + (_blocking(tasks, x) if blocking else 0)
        - x
        for x in points
    )
    return Worst(worst <= 0, float(worst))


def _blocking(tasks: Sequence[SporadicTask], instant: Fraction) -> Fraction:
    return max(
        (
            _exact(t.cost_s if t.section_s is None else t.section_s)
            for t in tasks
            if t.deadline_s is None or _exact(t.deadline_s) > instant
        ),
        default=Fraction(0),
    )


def _exact(seconds: float) -> Fraction:
    return Fraction(round(seconds * 10**9), 10**9)


def _common(values: Iterable[Fraction]) -> Fraction:
    return Fraction(math.lcm(*(round(value * 10**9) for value in values)), 10**9)


def random_tasks(rng: np.random.Generator, *, load: float) -> list[SporadicTask]:
    """2..5 tasks on a grid of milliseconds, periods that divide 120 ms."""
    count = int(rng.integers(2, 6))
    shares = rng.dirichlet(np.ones(count)) * load
    tasks = []
    for index, share in enumerate(shares):
        period = int(rng.choice([10, 12, 15, 20, 24, 30, 40, 60, 120]))
        cost = max(1, round(share * period))
        deadline = int(rng.integers(max(min(cost, period), 7 * period // 10), period + 1))
        section = None if rng.random() < 0.7 else float(rng.integers(1, cost + 1)) / 1000
        tasks.append(
            SporadicTask(f"t{index}", period / 1000, deadline / 1000, cost / 1000, section)
        )
    if rng.random() < 0.2:
        tasks.append(SporadicTask("idle", 1.0, None, float(rng.integers(1, 8)) / 1000))
    return tasks


def fine_tasks(rng: np.random.Generator, *, load: float) -> list[SporadicTask]:
    """3..7 tasks with that load but for a microsecond, deadlines mostly at the periods' end."""
    count = int(rng.integers(3, 8))
    shares = rng.dirichlet(np.ones(count) * 3) * load
    periods = rng.choice([10, 12, 15, 20, 24, 30, 40, 60, 120], count)
    costs = [max(1, round(s * p * 1000)) for s, p in zip(shares, periods, strict=True)]
    # The last task takes what is left, so that the load may be all there is.
    rest = load * 120_000 - sum(c * 120 // p for c, p in zip(costs, periods[:-1], strict=False))
    costs[-1] = max(1, int(rest * int(periods[-1]) / 120))
    tight = float(rng.choice([0, 0, 0.1, 0.3]))
    tasks = []
    for index, (period, cost) in enumerate(zip(periods.tolist(), costs, strict=True)):
        deadline = period - int(rng.uniform(0, tight) * period)
        section = float(rng.integers(1, cost + 1)) / 10**6 if rng.random() < 0.8 else None
        tasks.append(
            SporadicTask(f"t{index}", period / 1000, deadline / 1000, cost / 10**6, section)
        )
    return tasks
