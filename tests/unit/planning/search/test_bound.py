"""What is refused before any search, against trying everything."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest
from tests.simulation.crowds import crowd, crowded
from tests.unit.planning.shapes import device, task

from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import plan, prepare
from tierline_operator.planning.search.residents import Search


def small_search(seed: int, scheduling: Scheduling) -> Search:
    """Two or three tasks of a few points each, of all criticalities, some by their mean."""
    rng = np.random.default_rng(seed)
    tasks = []
    for number in range(int(rng.integers(2, 4))):
        period_ms = float(rng.choice([50, 100, 200, 400]))
        size = int(rng.integers(1, 4))
        compute_ms = period_ms * float(rng.uniform(0.05, 0.4))
        kind = list(Criticality)[int(rng.choice(3, p=[0.7, 0.2, 0.1]))]
        mean = {"mean_compute_s": (compute_ms / 2000 / size,) * size}
        tasks.append(
            task(
                *(f"task-{number}", period_ms, period_ms * float(rng.uniform(0.5, 1)), compute_ms),
                megabytes=size,
                layers=size,
                workspace_bytes=int(rng.integers(0, 2 * 10**6)),
                criticality=kind,
                **(mean if kind is Criticality.SOFT else {}),  # type: ignore[arg-type]
            )
        )
    prepared = prepare(tasks, device(100, dispatch_s=float(rng.choice([0, 1e-3]))))
    assert not isinstance(prepared, Infeasible)
    (only,) = prepared
    return Search(only.tasks, {"default": 2}, only.test, scheduling)


@pytest.mark.parametrize("scheduling", Scheduling)
def test_nothing_is_refused_that_some_choice_holds(scheduling: Scheduling) -> None:
    refused = nearly = 0
    for seed in range(60):
        search = small_search(seed, scheduling)
        numbers = range(len(search.tasks))
        subsets = [
            frozenset(i for i in numbers if mask >> i & 1)
            for mask in range(1 if scheduling is Scheduling.NON_PREEMPTIVE else 1 << len(numbers))
        ]
        tried = [
            search.judge(list(chosen), subset)
            for chosen in product(*(range(len(options)) for options in search.options))
            for subset in subsets
        ]
        least = min((one.used for one in tried if one.ok), default=None)
        if least is not None:
            assert not any(search.bound.refuses(limit) for limit in range(least, least + 3))
        for limit in range(12 if least is None else least):
            refused += search.bound.refuses(limit)
            nearly += 1
    assert refused > 0.8 * nearly, (refused, nearly)


def test_a_hundred_tasks_are_refused_soon() -> None:
    """Only processor time counts here; it took minutes when every start was searched."""
    tasks = crowd("mixed", 1, 100, 1.1)
    begun = time.process_time()
    assert not plan(tasks, crowded(tasks, 4.0)).ok
    assert time.process_time() - begun < 5
