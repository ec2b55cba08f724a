"""The exact planner against trying everything, and against the search."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.bench.schedulability.exact import least_memory
from tests.unit.planning.shapes import device, task

from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.search.residents import Search


def small_search(seed: int, scheduling: Scheduling) -> Search:
    """Two or three tasks of four points or so each."""
    rng = np.random.default_rng(seed)
    tasks = []
    for number in range(int(rng.integers(2, 4))):
        period_ms = float(rng.choice([50, 100, 200, 400]))
        size = int(rng.integers(1, 4))
        tasks.append(
            task(
                f"task-{number}",
                period_ms,
                period_ms * float(rng.uniform(0.5, 1)),
                period_ms * float(rng.uniform(0.05, 0.3)),
                megabytes=size,
                layers=size,
                workspace_bytes=int(rng.integers(0, 2 * 10**6)),
            )
        )
    prepared = prepare(tasks, device(100, dispatch_s=float(rng.choice([0, 1e-3]))))
    assert not isinstance(prepared, Infeasible)
    (only,) = prepared
    return Search(only.tasks, {"default": 2}, only.test, scheduling)


@pytest.mark.parametrize("scheduling", Scheduling)
def test_nothing_holds_with_less(scheduling: Scheduling) -> None:
    found = 0
    for seed in range(25):
        search = small_search(seed, scheduling)
        outcome = least_memory(search)
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
        best = min((one.used for one in tried if one.ok), default=None)
        assert (None if outcome is None else outcome.used) == best
        found += outcome is not None and outcome.ok
    assert found > 8


def test_best_effort_is_refused() -> None:
    prepared = prepare([task("one", 100, 100, 1, criticality=Criticality.BEST_EFFORT)], device(100))
    assert not isinstance(prepared, Infeasible)
    with pytest.raises(ValueError, match="deadlines"):
        least_memory(Search(prepared[0].tasks, {"default": 2}, prepared[0].test))
