"""The agent's own executor, leases and order of releases under virtual time, on random sets.

Sets are stretched until they are just admitted: Hard tasks, Soft ones by their mean that always
take their worst, several jobs in a release with time between, input that comes late, programs that
end in their first jobs and start again without pause, two tiers, two domains. No Hard job misses
its deadline, and no response is above its bound, from the release.

`python -m tests.unit.agent.scheduling.test_agent_under_attack SETS` plays so many sets and counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.agent.scheduling.test_displaced_streams import BOTH, SAME
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import device, task
from tests.unit.planning.test_releases import CPU, PAIR

from tierline_agent.scheduling.leases import LeaseManager
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.residents import Search
from tierline_operator.simulation.from_plans import models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

TOLERANCE_S = 1e-7
UNTIL_S = 4.0
HALVINGS = 7


@dataclass
class Seen:
    """Sums over sets."""

    sets: int = 0
    runs: int = 0
    jobs: int = 0
    preemptions: int = 0
    contained: int = 0
    first_jobs: int = 0
    """Of programs that end and start again all the time."""
    above: int = 0
    """Responses above their bound."""
    misses: int = 0


def random_set(rng: np.random.Generator) -> list[TaskDemand]:
    demands = []
    for number in range(int(rng.integers(2, 6))):
        period_ms = float(rng.uniform(60, 1500))
        layers = int(rng.integers(1, 9))
        deadline_ms = period_ms * float(rng.uniform(0.5, 1))
        one = task(
            f"task-{number}",
            period_ms,
            deadline_ms,
            period_ms * float(rng.uniform(0.02, 0.2)),
            layers=layers,
            megabytes=layers,
            tiers=(("dram", "nvme")[int(rng.integers(2))],),
            policy=list(SwapPolicy)[int(rng.integers(len(SwapPolicy)))],
            domain=("a", "b")[int(rng.integers(2))],
        )
        calls = int(rng.choice([1, 1, 2, 3]))
        if calls > 1:
            between_s = period_ms / 1e3 * float(rng.uniform(0, 0.05))
            one = replace(one, calls=(calls,), between_s=between_s)
        elif number and rng.random() < 0.4:
            means = tuple(seconds / float(rng.uniform(2, 8)) for seconds in one.compute_s)
            one = replace(one, criticality=Criticality.SOFT, mean_compute_s=means)
        if rng.random() < 0.5:
            one = replace(one, jitter_s=deadline_ms / 1e3 * float(rng.uniform(0, 0.2)))
        if rng.random() < 0.4:
            section_s = deadline_ms / 1e3 * float(rng.uniform(0, 0.3))
            one = replace(one, first_section_s=section_s)
        demands.append(one)
    return demands


def stretched(demands: Sequence[TaskDemand], by: float) -> list[TaskDemand]:
    return [
        replace(
            one,
            compute_s=tuple(seconds * by for seconds in one.compute_s),
            mean_compute_s=one.mean_compute_s and tuple(s * by for s in one.mean_compute_s),
            first_section_s=one.first_section_s and one.first_section_s * by,
        )
        for one in demands
    ]


def just_admitted(
    demands: Sequence[TaskDemand], where: DeviceCapacity, way: Scheduling
) -> tuple[list[TaskDemand], Admitted] | None:
    found, low, high = None, 0.0, 8.0
    for _ in range(HALVINGS):
        factor = (low + high) / 2
        tried = stretched(demands, factor)
        answer = plan(tried, where, scheduling=way)
        if isinstance(answer, Admitted):
            found, low = (tried, answer), factor
        else:
            high = factor
    return found


def attack(rng: np.random.Generator, folder: Path, seen: Seen, *, runs: int = 6) -> None:
    """Draw a set, stretch it, and play it."""
    way = list(Scheduling)[int(rng.integers(3))]
    dispatch_s = float(rng.choice([0.0, 0.002]))
    where = device(int(rng.integers(10, 40)), tiers=BOTH, dispatch_s=dispatch_s)
    found = just_admitted(random_set(rng), where, way)
    if found is None:
        return
    demands, answer = found
    seen.sets += 1
    for number in range(runs):
        first_s = [1.0 + float(rng.uniform(0, 0.3)) * (number > 0) for _ in demands]
        node = played(demands, answer, where, first_s, rng, folder)
        seen.runs += 1
        seen.jobs += sum(map(len, node.responses_s))
        seen.preemptions += node.preemptions
        seen.contained += sum(node.contained)
        seen.first_jobs += node.first_jobs
        for demand, granted, responses_s in zip(
            demands, answer.plans, node.responses_s, strict=True
        ):
            if granted.response_s is not None:
                bound_s = granted.response_s + TOLERANCE_S
                seen.above += sum(response_s > bound_s for response_s in responses_s)
                limit_s = demand.deadline_s + TOLERANCE_S
                seen.misses += sum(response_s > limit_s for response_s in responses_s)


def played(
    demands: Sequence[TaskDemand],
    answer: Admitted,
    where: DeviceCapacity,
    first_s: Sequence[float],
    rng: np.random.Generator,
    folder: Path,
) -> VirtualNode:
    models = models_of(demands, answer.plans, where)
    periods_s = [model.period_s for model in models]
    node = VirtualNode(
        folder,
        models,
        Arrivals(periods_s, Pattern(first_s, UNTIL_S, sporadic=0.3), rng.random),
        [tier.link for tier in where.tiers.values()],
        SAME.get(answer.scheduling, SAME[Scheduling.RING_KEEPING]),
        dispatch_s=where.dispatch_s,
        jitter_s=[granted.jitter_s for granted in answer.plans],
        later_s=lambda at: demands[at].jitter_s * float(rng.choice([0.0, rng.random(), 1.0])),
        in_turn=True,
        first_s=[_at_once_s(one, where) for one in demands],
        starts_until_s=UNTIL_S,
        again_s=lambda: float(rng.choice([0.0, rng.exponential(0.05)])),
    )
    try:
        node.run()
    finally:
        node.close()
    return node


def _at_once_s(demand: TaskDemand, where: DeviceCapacity) -> float:
    """How long a first job has the device."""
    return demand.first_section_s + where.dispatch_s if demand.first_section_s else 0.0


def attacked(folder: Path, sets: int, seed: int = 5) -> Seen:
    seen = Seen()
    for number in range(sets):
        attack(np.random.default_rng((number, seed)), folder, seen)
    return seen


@pytest.mark.slow
def test_no_job_is_late(tmp_path: Path) -> None:
    seen = attacked(tmp_path, 44)
    assert (seen.above, seen.misses) == (0, 0)
    assert seen.sets > 20
    assert seen.preemptions > 100
    assert seen.first_jobs > 1000


def test_nobody_due_later_comes_between_the_jobs_of_a_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = plan(PAIR, CPU, scheduling=Scheduling.NON_PREEMPTIVE)
    assert isinstance(answer, Admitted)
    bound_s = answer.plans[0].response_s
    assert bound_s is not None

    def worst_s() -> float:
        longest_s = 0.0
        for later_ms in range(0, 400, 20):
            first_s = [1.000001, 1.0, 1.0 + later_ms / 1e3]
            rng = np.random.default_rng(0)
            node = played(PAIR, answer, CPU, first_s, rng, tmp_path)
            longest_s = max(longest_s, *node.responses_s[0])
        return longest_s

    assert worst_s() <= bound_s
    monkeypatch.setattr(LeaseManager, "keep", lambda *_: None)
    assert worst_s() > bound_s


STARTING = [
    task("urgent", 400, 100, 10, megabytes=1, layers=1),
    replace(task("other", 2000, 2000, 10, megabytes=1, layers=1), first_section_s=0.07),
]


def test_programs_that_start_again_and_again_cost_no_more_than_was_charged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def worst_s() -> tuple[float, float]:
        answer = plan(STARTING, CPU, scheduling=Scheduling.NON_PREEMPTIVE)
        assert isinstance(answer, Admitted)
        bound_s = answer.plans[0].response_s
        assert bound_s is not None
        longest_s = 0.0
        for later_ms in range(0, 80, 5):
            rng = np.random.default_rng(later_ms)
            first_s = [1.0 + later_ms / 1e3, 1.0]
            node = played(STARTING, answer, CPU, first_s, rng, tmp_path)
            assert node.first_jobs > 20
            longest_s = max(longest_s, *node.responses_s[0])
        return longest_s, bound_s

    longest_s, bound_s = worst_s()
    assert 0.8 * bound_s < longest_s <= bound_s + TOLERANCE_S
    monkeypatch.setattr(Search, "first", lambda *_args: (0, 0))
    longest_s, bound_s = worst_s()
    assert longest_s > bound_s


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(attacked(Path(scratch), int(sys.argv[1]), int([*sys.argv, "5"][2])))
