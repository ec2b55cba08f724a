"""Attacks on plans in the simulator of the product, which can preempt; the agent's own policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.simulation.device import Machine, Noise, Policy, Seen, simulate
from tierline_operator.simulation.from_plans import machine_of, models_of, starting_of
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

START_S = 1.0
INSTANT_S = 1e-9


@dataclass
class Attacked:
    """Sums over all runs."""

    runs: int = 0
    jobs: int = 0
    preemptions: int = 0
    rings_lost: int = 0
    missed_runs: int = 0
    latest_s: float = float("-inf")
    worst_response_s: tuple[float, ...] = ()

    def add(self, seen: Seen) -> None:
        self.runs += 1
        self.jobs += seen.jobs
        self.preemptions += seen.preemptions
        self.rings_lost += seen.rings_lost
        self.missed_runs += sum(seen.misses) > 0
        self.latest_s = max(self.latest_s, seen.latest_s)
        worst = [max(times, default=0.0) for times in seen.responses_s]
        before = self.worst_response_s or (0.0,) * len(worst)
        self.worst_response_s = tuple(map(max, before, worst))


def play(
    models: Sequence[TaskModel],
    machine: Machine,
    pattern: Pattern,
    *,
    noise: Noise | None = None,
    draw: np.random.Generator | None = None,
    policy: Policy | None = None,
) -> Seen:
    """One run."""
    periods = [model.period_s for model in models]
    arrivals = (
        Arrivals(periods, pattern) if draw is None else Arrivals(periods, pattern, draw.random)
    )
    return simulate(models, machine, arrivals, policy or AgentPolicy(), noise)


def attack(
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    device: DeviceCapacity,
    scheduling: Scheduling,
    critical_s: Sequence[float],
    rng: np.random.Generator,
    *,
    horizon_s: float = 1.0,
    random_runs: int = 2,
) -> Attacked:
    """Every pattern: durations in full, shortened by job-wide and by layer-wise draws."""
    models = [*models_of(demands, plans, device), *starting_of(demands, plans, device)]
    machine = machine_of(plans, device, scheduling)
    total = Attacked()
    for number, pattern in enumerate(_patterns(models, critical_s, rng, horizon_s, random_runs)):
        total.add(play(models, machine, pattern, draw=rng))
        if number % 2:
            total.add(play(models, machine, pattern, noise=shortened(rng), draw=rng))
    total.worst_response_s = total.worst_response_s[: len(demands)]
    return total


def shortened(rng: np.random.Generator) -> Noise:
    """Layers and copies take less than planned, and links are busy now and then."""
    least = float(rng.uniform(0.1, 0.9))
    return Noise(
        layer=partial(rng.uniform, least, 1.0),
        copy=partial(rng.uniform, 0.3, 1.0),
        busy=lambda: bool(rng.random() < 0.5),
    )


def _patterns(
    models: Sequence[TaskModel],
    critical_s: Sequence[float],
    rng: np.random.Generator,
    horizon_s: float,
    random_runs: int,
) -> Iterator[Pattern]:
    until = START_S + horizon_s
    for blocker in (None, *range(len(models))):
        starts = [[START_S] * len(models)]
        starts += [_aligned(models, instant, rng) for instant in critical_s]
        late = [START_S + (m.period_s * rng.random() if rng.random() < 0.5 else 0) for m in models]
        for first in (*starts, late):
            if blocker is not None:
                first[blocker] = START_S - INSTANT_S
        for first in starts:
            yield Pattern(first, until, delayed=blocker)
        yield Pattern(late, until, sporadic=0.5, adaptive=True)
    for _ in range(random_runs):
        offsets = [START_S + model.period_s * rng.random() for model in models]
        yield Pattern(offsets, until)
        yield Pattern(offsets, until, sporadic=0.6)


def _aligned(
    models: Sequence[TaskModel], instant_s: float, rng: np.random.Generator
) -> list[float]:
    """First releases such that every task has a deadline at START_S + instant_s, if it can."""
    first = []
    for model in models:
        spare = instant_s - (model.deadline_s or model.period_s)
        shift = spare % model.period_s if spare >= 0 else model.period_s * rng.random()
        first.append(START_S + shift)
    return first
