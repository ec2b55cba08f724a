"""Layer-preemptive admission on random task sets: how much it admits, and is it sound?

    python -m tests.bench.preemption [--sets 140] [--seconds 600] [--json FILE]

Each set is planned at memory demand 2 x capacity for each scheduling model. Then each is made
*tight*: fast memory is bisected until the set is only just admitted, so that no slack can hide an
unsound term, and those plans are attacked in the simulator that runs the agent's lease policy (all
at once, each task as blocker an instant before, aligned to the critical time, jobs held back until
the worst moment, random sporadic arrivals; times in full and shortened). A single miss, or a
response above its bound, is an unsound test. Sets depend on --seed only; --seconds ends the
attacks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from tests.bench.machine import describe
from tests.simulation.preemptive import attack
from tests.simulation.tasksets import device_for, random_set

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
RATIO = 2.0
BISECTIONS = 9
RESPONSE_TOLERANCE_S = 2e-9


@dataclass
class Tight:
    """What the attacks on tight plans of one model came to."""

    sets: int = 0
    runs: int = 0
    jobs: int = 0
    preemptions: int = 0
    rings_lost: int = 0
    missed_runs: int = 0
    broken_bounds: int = 0
    least_slack_s: float = float("inf")


def drawn(seed: int, load: float) -> list[TaskDemand]:
    """A set with activations of 1 to 64 MB, smaller than the workspace."""
    rng = np.random.default_rng((seed, round(load * 100), 7))
    return [
        replace(task, activation_bytes=min(task.workspace_bytes, int(rng.uniform(1, 64) * 1e6)))
        for task in random_set(rng, load)
    ]


def only_just(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, scheduling: Scheduling
) -> tuple[Admitted, DeviceCapacity] | None:
    """The set on the smallest device on which bisection finds it admitted."""
    low, high = 0, 2 * device.fast_bytes
    best: tuple[Admitted, DeviceCapacity] | None = None
    for _ in range(BISECTIONS):
        tried = replace(device, fast_bytes=high if best is None else (low + high) // 2)
        answer = plan(tasks, tried, give_spare=False, scheduling=scheduling)
        if isinstance(answer, Admitted):
            best, high = (answer, tried), tried.fast_bytes
        elif best is None:
            return None
        else:
            low = tried.fast_bytes
    return best


def examine(tasks: Sequence[TaskDemand], scheduling: Scheduling, seed: int, into: Tight) -> None:
    """Make one set tight and attack it."""
    found = only_just(tasks, device_for(list(tasks), RATIO), scheduling)
    if found is None:
        return
    answer, device = found
    rng = np.random.default_rng((seed, 1))
    windows = [answer.critical_time_s, *sorted({task.deadline_s for task in tasks})[:2]]
    seen = attack(tasks, answer.plans, device, answer.scheduling, windows, rng, horizon_s=0.6)
    into.sets += 1
    into.runs += seen.runs
    into.jobs += seen.jobs
    into.preemptions += seen.preemptions
    into.rings_lost += seen.rings_lost
    into.missed_runs += seen.missed_runs
    into.least_slack_s = min(into.least_slack_s, -seen.latest_s)
    into.broken_bounds += sum(
        plan.response_s is not None and worst > plan.response_s + RESPONSE_TOLERANCE_S
        for plan, worst in zip(answer.plans, seen.worst_response_s, strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit 1 if an admitted set missed or broke a bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.preemption", description=__doc__)
    parser.add_argument("--sets", type=int, default=140, help="sets planned, over all loads")
    parser.add_argument("--seconds", type=float, default=600, help="time for the attacks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    shares = _shares(options.seed, options.sets)
    tight = _attacks(options.seed, options.seconds)
    report = {
        **describe(),
        "memory_ratio": RATIO,
        "admitted_percent": shares,
        "tight": {way.value: asdict(figures) for way, figures in tight.items()},
    }
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(t.missed_runs or t.broken_bounds for t in tight.values()) else 0


def _shares(seed: int, sets: int) -> dict[str, dict[str, float]]:
    admitted: dict[str, dict[str, list[bool]]] = {way.value: {} for way in Scheduling}
    for load, number in _numbered(seed, sets):
        tasks = drawn(number, load)
        device = device_for(tasks, RATIO)
        for way in Scheduling:
            ok = plan(tasks, device, scheduling=way).ok
            admitted[way.value].setdefault(f"{load:g}", []).append(ok)
    shares = {}
    for name, cells in admitted.items():
        percent = {load: 100 * sum(oks) / len(oks) for load, oks in cells.items()}
        shares[name] = {**percent, "mean": sum(percent.values()) / len(percent)}
    return shares


def _attacks(seed: int, seconds: float) -> dict[Scheduling, Tight]:
    tight = {way: Tight() for way in Scheduling}
    end = time.monotonic() + seconds
    for load, number in _numbered(seed, sys.maxsize):
        for way, figures in tight.items():
            if time.monotonic() > end:
                return tight
            examine(drawn(number, load), way, number, figures)
    return tight


def _numbered(seed: int, sets: int) -> Iterator[tuple[float, int]]:
    for number in range(sets):
        yield LOADS[number % len(LOADS)], seed + number // len(LOADS)


if __name__ == "__main__":
    sys.exit(main())
