"""Is admission sound? Just-admitted sets under attack, by the million.

Each set is made *tight* for each way of scheduling: fast memory is bisected until the set is only
just admitted, so that no slack can hide an unsound term. Sets take turns on four devices: a bare
one; one planned with margins, and attacked with layers and links that are as slow as those allow; a
GPU, where jobs yield only when what they wait for is there, with the run time's own costs and two
extents at a time on its link; and the same with half of the weights on NVMe: its extents stand
before jobs that never read from there, as a stream that is displaced and a copy ahead of another
task's next job do. Programs of half of the tasks start again four times a second: their first jobs
are played as the agent runs them, without a rank. The attacks: each task as the blocker an instant
before all others or before those aligned to the critical time or to a deadline; jobs held back
until another has just begun its last or longest layer; random offsets and separations; each with
durations in full, with layers, copies or both shortened one by one or for whole jobs, and with
links found busy or free. A miss, a deadlock, or a response above its bound is an unsound test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import cycle, islice

import numpy as np
from tests.bench.preemption import drawn
from tests.bench.schedulability.shapes import as_on
from tests.simulation.compiled.runs import Attack, play
from tests.simulation.compiled.tables import tables_of
from tests.simulation.tasksets import device_for

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand, TierCapacity
from tierline_operator.simulation.from_plans import machine_of, models_of, starting_of
from tierline_operator.simulation.job import TaskModel

LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MARGINS = Margins(compute=1.1, bandwidth=1.25)
NVME = LinkRate(12e9, 5e-5, in_flight=2)
DEVICES = (DeviceKind.CPU, DeviceKind.CPU, DeviceKind.CUDA, DeviceKind.CUDA)
"""Taken by sets in turn; only how jobs wait follows from the kind alone."""
BISECTIONS = 8
TOLERANCE_S = 2e-9
START_S = 1.0
INSTANT_S = 1e-9
SHORTEST_S, LONGEST_S = 0.2, 2.0
"""Releases go on for the critical time, but at least and at most so long."""


@dataclass
class Tally:
    """What the attacks came to; all sums, but for the slack."""

    sets: int = 0
    never_admitted: int = 0
    runs: int = 0
    jobs: int = 0
    preemptions: int = 0
    rings_lost: int = 0
    missed_runs: int = 0
    failed_runs: int = 0
    broken_bounds: int = 0
    least_slack_s: float = float("inf")

    def add(self, other: Tally) -> None:
        """Count what another one counted."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            least = field.name == "least_slack_s"
            setattr(self, field.name, min(mine, theirs) if least else mine + theirs)

    @property
    def sound(self) -> bool:
        """Nothing went wrong."""
        return not self.missed_runs and not self.failed_runs and not self.broken_bounds


def examine(number: int, load: float, scheduling: Scheduling, runs: int) -> Tally:
    """Draw set `number`, make it tight, and attack it so many times."""
    tasks, device = on_device(number % len(DEVICES), starting(number, drawn(number, load)))
    found = only_just(tasks, device, scheduling)
    if found is None:
        return Tally(never_admitted=1)
    rng = np.random.default_rng((number, round(load * 100), 11))
    models = models_of(tasks, found.plans, device) + starting_of(tasks, found.plans, device)
    machine = machine_of(found.plans, device, found.scheduling)
    windows = [found.critical_time_s, *sorted({task.deadline_s for task in tasks})[:2]]
    attacks = list(islice(patterns(models, windows, rng), runs))
    played = play(tables_of(models, machine), attacks)
    bounds = [plan.response_s for plan in found.plans]
    return Tally(
        sets=1,
        runs=len(attacks),
        jobs=int(played.seen["jobs"].sum()),
        preemptions=int(played.seen["preemptions"].sum()),
        rings_lost=int(played.seen["rings_lost"].sum()),
        missed_runs=int((played.seen["misses"] > 0).sum()),
        failed_runs=int((played.seen["failed"] > 0).sum()),
        broken_bounds=sum(
            bound is not None and float(worst) > bound + TOLERANCE_S
            for bound, worst in zip(bounds, played.worst_s.max(axis=0)[: len(tasks)], strict=True)
        ),
        least_slack_s=-float(played.seen["latest_s"].max()),
    )


def starting(number: int, tasks: list[TaskDemand]) -> list[TaskDemand]:
    """The programs of half of them start again and again; a module may take three times as long."""
    rng = np.random.default_rng((number, 13))
    return [
        replace(
            task,
            first_section_s=max(task.compute_s) * float(rng.uniform(0, 3)),
            first_extra_s=sum(task.compute_s) * float(rng.uniform(0, 0.5)),
        )
        if rng.random() < 0.5
        else task
        for task in tasks
    ]


def on_device(which: int, tasks: list[TaskDemand]) -> tuple[list[TaskDemand], DeviceCapacity]:
    """The tasks as they ask one of the devices, which has half of the memory that they need."""
    device = device_for(tasks, 2.0)
    if which == 0:
        return tasks, device
    if which == 1:
        return tasks, replace(device, margins=MARGINS)
    own, dram = OVERHEADS[DeviceKind.CUDA], device.tiers["dram"]
    tiers = {"dram": replace(dram, link=replace(dram.link, in_flight=2))}
    if which == 3:
        half = sum(task.layout.extent_count * task.layout.extent_bytes for task in tasks) // 2
        tiers = {"dram": replace(tiers["dram"], capacity_bytes=half)}
        tiers["nvme"] = TierCapacity(dram.capacity_bytes, NVME)
        tasks = [replace(task, tiers=("dram", "nvme")) for task in tasks]
    gpu = replace(
        device, tiers=tiers, margins=MARGINS, dispatch_s=own.dispatch_s, gate_s=own.gate_s
    )
    return tasks, as_on(DEVICES[which], gpu)


def only_just(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, scheduling: Scheduling
) -> Admitted | None:
    """The set with the least fast memory with which bisection finds it admitted."""
    prepared = prepare(tasks, device)
    if isinstance(prepared, Infeasible):
        return None
    low, high = 0, 2 * device.fast_bytes
    first = prepared[0]
    if not first.holds(high, scheduling):
        return None
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        low, high = (low, middle) if first.holds(middle, scheduling) else (middle, high)
    answer = first.answer(high, scheduling, give_spare=False)
    return answer if isinstance(answer, Admitted) else None


def patterns(
    models: Sequence[TaskModel], windows_s: Sequence[float], rng: np.random.Generator
) -> Iterator[Attack]:
    """Attacks without end: each release pattern with each kind of shortening in turn."""
    horizon_s = min(max(SHORTEST_S, windows_s[0]), LONGEST_S)
    until_s = START_S + horizon_s
    for blocker in cycle((None, *range(len(models)))):
        starts = [[START_S] * len(models)]
        starts += [aligned(models, window, rng) for window in windows_s]
        late = [START_S + (m.period_s * rng.random() if rng.random() < 0.5 else 0) for m in models]
        if blocker is not None:
            for first in (*starts, late):
                first[blocker] = START_S - INSTANT_S
        offsets = [START_S + model.period_s * rng.random() for model in models]
        plain = [Attack(tuple(first), until_s, 0, delayed=blocker) for first in starts]
        plain.append(Attack(tuple(late), until_s, 0, sporadic=0.5, adaptive=True))
        plain.append(Attack(tuple(offsets), until_s, 0, sporadic=float(rng.choice([0.0, 0.6]))))
        for attack in plain:
            yield replace(attack, seed=int(rng.integers(1 << 53)))
            yield shortened(attack, rng)


def shortened(attack: Attack, rng: np.random.Generator) -> Attack:
    """The same releases, with some durations below the plan."""
    what = rng.random()
    least = float(rng.uniform(0.05, 0.95))
    return replace(
        attack,
        seed=int(rng.integers(1 << 53)),
        layer_least=least if what < 0.7 else 1.0,
        copy_least=float(rng.uniform(0.3, 1.0)) if what > 0.4 else 1.0,
        hold=float(rng.choice([0.0, 0.9, 0.99])),
        busy=float(rng.choice([0.5, 1.0])),
    )


def aligned(models: Sequence[TaskModel], instant_s: float, rng: np.random.Generator) -> list[float]:
    """First releases such that every task has a deadline at START_S + instant_s, if it can."""
    first = []
    for model in models:
        spare = instant_s - (model.deadline_s or model.period_s)
        shift = spare % model.period_s if spare >= 0 else model.period_s * rng.random()
        first.append(START_S + shift)
    return first
