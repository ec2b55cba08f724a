"""Soft tasks that always take their worst harm nobody but themselves.

Random sets with one Hard task and Soft ones admitted by their means, squeezed until they are just
admitted, and played with layers of the worst times by the agent's lease policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.shapes import device, task

from tierline_api.objects.realtime import Criticality
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.simulation.device import simulate
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

SETS = 12
WAYS = (Scheduling.LAYER_PREEMPTIVE, Scheduling.RING_KEEPING)


def random_tasks(rng: np.random.Generator) -> list[TaskDemand]:
    """A Hard task and two to four Soft ones with a worst of up to nine times their mean."""
    tasks = [task("hard", 200, float(rng.uniform(60, 200)), float(rng.uniform(5, 30)))]
    for index in range(int(rng.integers(2, 5))):
        period_ms = float(rng.choice([100, 200, 400]))
        mean_ms = float(rng.uniform(3, 12))
        worst_ms = mean_ms * float(rng.uniform(2, 9))
        layers = int(rng.integers(4, 20))
        deadline_ms = period_ms * float(rng.uniform(0.5, 1))
        soft = task(f"soft-{index}", period_ms, deadline_ms, worst_ms, layers=layers)
        means = (mean_ms / 1000 / layers,) * layers
        tasks.append(replace(soft, criticality=Criticality.SOFT, mean_compute_s=means))
    return tasks


def just_admitted(
    tasks: Sequence[TaskDemand], where: DeviceCapacity
) -> tuple[list[TaskDemand], Admitted] | None:
    """With the shortest deadline of the Hard task that is admitted, found by bisection."""
    low, high = sum(tasks[0].compute_s), tasks[0].deadline_s
    found: tuple[list[TaskDemand], Admitted] | None = None
    for _ in range(12):
        tried = [replace(tasks[0], deadline_s=high), *tasks[1:]]
        answer = plan(tried, where)
        if isinstance(answer, Admitted):
            found = (tried, answer)
        elif found is None:
            return None
        else:
            low = high
        high = (low + found[0][0].deadline_s) / 2
    return found


def hard_misses(
    tasks: list[TaskDemand], answer: Admitted, where: DeviceCapacity, *, contained: bool
) -> int:
    models = models_of(tasks, answer.plans, where)
    if not contained:
        models = [replace(model, budget_s=None) for model in models]
    machine = machine_of(answer.plans, where, answer.scheduling)
    periods = [one.period_s for one in tasks]
    misses = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        first = [0.5 + float(rng.random()) * one.period_s * (seed % 3 > 0) for one in tasks]
        first[0] = 0.5 + 1e-6
        pattern = Pattern(first, 4.0, sporadic=0.3 * (seed % 2), adaptive=seed > 3)
        seen = simulate(models, machine, Arrivals(periods, pattern, rng.random), AgentPolicy())
        misses += seen.misses[0]
    return misses


def drawn(way: Scheduling) -> Iterator[tuple[list[TaskDemand], Admitted, DeviceCapacity]]:
    rng = np.random.default_rng(7)
    for _ in range(SETS):
        tasks = random_tasks(rng)
        size = int(rng.integers(12, 60))
        where = replace(device(size), supports=frozenset({way}), dispatch_s=0.0005)
        found = just_admitted(tasks, where)
        if found is not None:
            yield (*found, where)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_hard_deadlines_hold_whatever_soft_jobs_take(way: Scheduling) -> None:
    attacked = by_mean = without = 0
    for tasks, answer, where in drawn(way):
        attacked += 1
        by_mean += any(one.response_s is None for one in answer.plans)
        assert hard_misses(tasks, answer, where, contained=True) == 0
        without += hard_misses(tasks, answer, where, contained=False)
    assert attacked > SETS // 3
    assert by_mean > SETS // 5
    # The guard is what does it: without budgets the same sets miss.
    assert without > 0
