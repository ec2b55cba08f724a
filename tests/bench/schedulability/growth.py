"""The part `growth`: how long one more task takes on a device that is filling up.

Processor time, as a busy machine would tell of other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
from tests.bench.preemption import drawn
from tests.simulation.tasksets import device_for

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.incremental import ProvenSet, settle
from tierline_operator.planning.request import TaskDemand

CROWD = 100
LOAD = 0.45
MEMORY_RATIO = 1.5


def run(options: argparse.Namespace, about: dict[str, Any]) -> int:
    """Fill a device with a hundred tasks one by one, and then ask for one more again and again."""
    crowd = crowded(options.seed)
    device = device_for(crowd[:CROWD], MEMORY_RATIO)
    now = settle([], device)
    if isinstance(now, Infeasible):
        raise TypeError(now.sentence)
    filling, refused = [], 0
    for demand in crowd:
        if len(now.demands) == CROWD:
            break
        begun = time.process_time()
        after = now.with_task(demand)
        filling.append(time.process_time() - begun)
        refused += after is None
        now = after or now
    asked = [_ask(now, number) for number in range(options.times)]
    took = [seconds for seconds, _ in asked]
    report = {
        **about,
        "tasks": len(now.demands),
        "not_placed_quickly": refused,
        "deadlines_in_the_test": 0 if now.curve is None else len(now.curve.points),
        "admitted": sum(admitted for _, admitted in asked),
        "asked": len(asked),
        "processor_milliseconds": {
            "median": round(1e3 * statistics.median(took), 2),
            "p99": round(1e3 * float(np.quantile(took, 0.99)), 2),
            "worst": round(1e3 * max(took), 2),
            "while_filling_worst": round(1e3 * max(filling), 2),
        },
    }
    print(json.dumps(report, indent=1))
    path = options.folder / "schedulability-growth.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def crowded(seed: int) -> list[TaskDemand]:
    """Tasks of which a hundred make up LOAD of the device; more, as not each one fits quickly."""
    tasks: list[TaskDemand] = []
    while len(tasks) < 2 * CROWD:
        for task in drawn(seed + len(tasks), 0.05):
            share = LOAD / 0.05 * 7 / CROWD
            scaled = tuple(seconds * share for seconds in task.compute_s)
            tasks.append(replace(task, name=f"task-{len(tasks)}", compute_s=scaled))
    return tasks


def _ask(now: ProvenSet, number: int) -> tuple[float, bool]:
    demand = replace(drawn(900 + number, 0.05)[0], name=f"more-{number}")
    begun = time.process_time()
    after = now.with_task(demand)
    return time.process_time() - begun, after is not None
