"""The part `optimum`: least memory of small sets as the planner finds it, and the least there is.

Same rings, same curves, all choices (exact.py). The planner's least memory is found
by bisection; both count residents, rings, parked activations and the workspace.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
from tests.bench.schedulability.exact import least_memory
from tests.simulation.tasksets import device_for, random_set

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.prepared import Prepared
from tierline_operator.planning.request import TaskDemand
from tierline_operator.planning.search.options import rings_to_try
from tierline_operator.planning.search.residents import Search

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
WAYS = (Scheduling.NON_PREEMPTIVE, Scheduling.RING_KEEPING)


def run(options: argparse.Namespace, about: dict[str, Any]) -> int:
    """Compare set by set; each set for both ways of scheduling."""
    begun = time.monotonic()
    found: dict[Scheduling, list[tuple[int, int]]] = {way: [] for way in WAYS}
    neither = dict.fromkeys(WAYS, 0)
    done = 0
    for done in range(1, options.sets + 1):
        tasks = small_set(options.seed + done // len(LOADS), LOADS[done % len(LOADS)])
        prepared = prepare(tasks, device_for(tasks, 1.0))
        if isinstance(prepared, Infeasible):
            raise TypeError(prepared.sentence)
        for way in WAYS:
            best = optimum_bytes(prepared[0], way)
            if best is None:
                neither[way] += 1
            else:
                found[way].append((planned_bytes(prepared[0], way, best), best))
        took_s = time.monotonic() - begun
        if done % 10 == 0 or took_s > options.seconds or done == options.sets:
            print(f"{done} sets, {took_s:.0f} s", file=sys.stderr, flush=True)
            _write(options, about, done, found, neither)
        if took_s > options.seconds:
            break
    return 0


def small_set(number: int, load: float) -> list[TaskDemand]:
    """Three or four tasks with activations."""
    rng = np.random.default_rng((number, round(load * 100), 5))
    return [
        replace(task, activation_bytes=min(task.workspace_bytes, int(rng.uniform(1, 64) * 1e6)))
        for task in random_set(rng, load, least=3, most=4)
    ]


def optimum_bytes(prepared: Prepared, way: Scheduling) -> int | None:
    """The least fast memory with which any of the choices holds; None if none does."""
    tasks = prepared.tasks
    size = tasks[0].demand.layout.extent_bytes
    extents: list[int] = []
    for rings in rings_to_try(tasks):
        outcome = least_memory(Search(tasks, rings, prepared.test, way))
        if outcome is not None and outcome.ok:
            extents.append(outcome.used + sum(rings.values()))
    if not extents:
        return None
    return min(extents) * size + prepared.workspace_bytes


def planned_bytes(prepared: Prepared, way: Scheduling, best: int) -> int:
    """The least with which the planner admits the set, to one extent; bisected from the optimum."""
    size = prepared.tasks[0].demand.layout.extent_bytes
    if prepared.holds(best, way):
        return best
    low, high = 0, 1
    while not prepared.holds(best + high * size, way):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if prepared.holds(best + middle * size, way) else (middle, high)
    return best + high * size


def _write(
    options: argparse.Namespace,
    about: dict[str, Any],
    done: int,
    found: dict[Scheduling, list[tuple[int, int]]],
    neither: dict[Scheduling, int],
) -> None:
    report: dict[str, Any] = {**about, "sets": done}
    for way, pairs in found.items():
        more = sorted(100 * (planned / best - 1) for planned, best in pairs)
        report[way.value] = {
            "holds_with_enough_memory": len(pairs),
            "never_holds": neither[way],
            "at_the_optimum": sum(excess <= 0 for excess in more),
            "more_memory_percent": {
                "mean": round(statistics.fmean(more), 2) if more else None,
                "median": round(statistics.median(more), 2) if more else None,
                "p90": round(more[int(0.9 * (len(more) - 1))], 2) if more else None,
                "worst": round(more[-1], 2) if more else None,
            },
        }
    text = json.dumps(report, indent=1)
    if done == options.sets:
        print(text)
    (options.folder / "schedulability-optimum.json").write_text(text + "\n")
