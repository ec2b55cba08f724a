"""Adversaries: release patterns that come close to the worst case of a set of plans.

Against an admitted set none may cause a miss. Against a refused one the *witness* must: all tasks
at once, the blocker an instant before (the demand test is exact for sporadic tasks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tests.simulation.device import Releases, Result, SimTask, simulate
from tests.simulation.engines import Machine, run_job

from tierline_api.objects.realtime import Criticality
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

START_S = 1.0
INSTANT_S = 1e-9
VARIANTS = 6


@dataclass
class Attacked:
    """Sums over all runs."""

    runs: int = 0
    jobs: int = 0
    missed_runs: int = 0
    latest_s: float = float("-inf")
    worst_response_s: tuple[float, ...] = ()


def machine_of(demand: TaskDemand, plan: TaskPlan, device: DeviceCapacity) -> Machine:
    """The task as its plan has it run, links at their planned rate and one busy at dispatch."""
    names = list(device.tiers)
    homes = [run.tier for run in plan.homes for _ in range(run.extents)]
    links = [device.tiers[name].link for name in names]
    size = demand.layout.extent_bytes
    slowest = max((device.tiers[name].link.flight_s(size) for name in set(homes)), default=0.0)
    return Machine(
        layout=demand.layout,
        compute_s=demand.compute_s,
        resident=frozenset(plan.resident_extents),
        ring_extents=plan.ring_extents,
        link_of_extent=[names.index(name) for name in homes],
        links=links,
        busy_s=slowest * device.blocked_extents,
        dispatch_s=device.dispatch_s,
    )


def sim_tasks(
    demands: Sequence[TaskDemand],
    plans: Sequence[TaskPlan],
    device: DeviceCapacity,
    rng: np.random.Generator,
) -> list[SimTask]:
    """Each task with its simulated job in full and a few shortened ones."""
    tasks = []
    for demand, plan in zip(demands, plans, strict=True):
        machine = machine_of(demand, plan, device)
        shortened = [
            run_job(machine, partial(rng.uniform, low, 1.0), partial(rng.uniform, low, 1.0))
            for low in np.linspace(0.1, 0.9, VARIANTS)
        ]
        shortened.append(run_job(machine, layer=lambda: 0.3))
        due = demand.criticality is not Criticality.BEST_EFFORT
        tasks.append(
            SimTask(
                demand.period_s,
                demand.deadline_s if due else None,
                run_job(machine),
                tuple(shortened),
            )
        )
    return tasks


def witness(tasks: Sequence[SimTask], blocker: int | None, critical_s: float) -> Result:
    """All tasks at once, the blocker an instant before, until the critical time has passed."""
    first = [START_S] * len(tasks)
    if blocker is not None:
        first[blocker] -= INSTANT_S
    until = START_S + critical_s + max(task.period_s for task in tasks)
    return simulate(tasks, Releases(first), until_s=until)


def attack(
    tasks: Sequence[SimTask],
    critical_s: Sequence[float],
    rng: np.random.Generator,
    *,
    horizon_s: float = 2.0,
    random_runs: int = 4,
) -> Attacked:
    """Every pattern against these tasks, jobs in full and shortened."""
    total = Attacked(worst_response_s=(0.0,) * len(tasks))
    for shorten in (False, True):
        for releases in _patterns(tasks, critical_s, rng, random_runs):
            seed = int(rng.integers(1 << 40))
            until = START_S + horizon_s
            seen = simulate(tasks, releases, until_s=until, shorten=shorten, seed=seed)
            total.runs += 1
            total.jobs += seen.jobs
            total.missed_runs += seen.misses > 0
            total.latest_s = max(total.latest_s, seen.latest_s)
            pairs = zip(total.worst_response_s, seen.worst_response_s, strict=True)
            total.worst_response_s = tuple(max(pair) for pair in pairs)
    return total


def _patterns(
    tasks: Sequence[SimTask],
    critical_s: Sequence[float],
    rng: np.random.Generator,
    random_runs: int,
) -> Iterator[Releases]:
    everyone = range(len(tasks))
    for blocker in (None, *everyone):
        starts: list[list[float]] = [[START_S] * len(tasks)]
        starts += [_aligned(tasks, instant, rng) for instant in critical_s]
        for first in starts:
            if blocker is not None:
                first[blocker] = START_S - INSTANT_S
            yield Releases(first, delayed=blocker)
        late = [
            START_S + (task.period_s * rng.random() if rng.random() < 0.5 else 0.0)
            for task in tasks
        ]
        if blocker is not None:
            late[blocker] = START_S - INSTANT_S
        yield Releases(late, sporadic=0.5, adaptive=True)
    for _ in range(random_runs):
        offsets = [START_S + task.period_s * rng.random() for task in tasks]
        yield Releases(list(offsets))
        yield Releases(list(offsets), sporadic=0.6)


def _aligned(tasks: Sequence[SimTask], instant_s: float, rng: np.random.Generator) -> list[float]:
    """First releases such that every task has a deadline at START_S + instant_s, if it can."""
    first = []
    for task in tasks:
        spare = instant_s - (task.deadline_s or task.period_s)
        first.append(
            START_S + (spare % task.period_s if spare >= 0 else task.period_s * rng.random())
        )
    return first
