"""Every limit of the device is respected by every plan, whatever is asked: random questions."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from tests.simulation.attack import machine_of
from tests.simulation.engines import run_job
from tests.simulation.preemptive import attack
from tests.unit.planning.shapes import random_layout

from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity

TIERS = ("dram", "pmem", "nvme")


def random_question(rng: np.random.Generator) -> tuple[list[TaskDemand], DeviceCapacity]:
    """Up to five tasks of a few small extents, of all policies, criticalities and domains."""
    tasks = []
    for index in range(int(rng.integers(1, 6))):
        layout = random_layout(rng, arenas=int(rng.integers(1, 3)))
        period_s = float(rng.choice([0.02, 0.05, 0.1, 0.2, 0.5]))
        times = rng.random(layout.layer_count)
        scale = float(rng.uniform(0.02, 0.25)) * period_s / max(1e-9, times.sum())
        tasks.append(
            TaskDemand(
                name=f"t{index}",
                domain=str(rng.choice(["left", "right"])),
                period_s=period_s,
                deadline_s=period_s * float(rng.uniform(0.5, 1)),
                layout=layout,
                compute_s=tuple(float(t) * scale for t in times),
                workspace_bytes=int(rng.integers(0, 400)),
                tiers=tuple(str(t) for t in rng.permutation(TIERS)[: int(rng.integers(1, 4))]),
                policy=list(SwapPolicy)[int(rng.choice(4, p=[0.55, 0.1, 0.25, 0.1]))],
                criticality=list(Criticality)[int(rng.choice(3, p=[0.7, 0.1, 0.2]))],
                reserved_bytes=int(rng.choice([0, 0, 500])),
            )
        )
    size = sum(task.layout.extent_count for task in tasks) * 100
    tiers = {
        name: TierCapacity(
            int(rng.integers(size // 300, size // 50 + 2)) * 100,
            LinkRate(float(rng.choice([2e5, 1e6])), float(rng.choice([0.0, 1e-5]))),
        )
        for name in TIERS
    }
    fast = int(size * rng.uniform(0.3, 1.1)) + 300
    device = DeviceCapacity(fast, tiers, dispatch_s=1e-4, blocked_extents=int(rng.integers(2)))
    return tasks, device


def check_limits(tasks: list[TaskDemand], device: DeviceCapacity, answer: Admitted) -> None:
    rings: dict[str, int] = defaultdict(int)
    stored: dict[str, int] = defaultdict(int)
    resident = 0
    for task, got in zip(tasks, answer.plans, strict=True):
        held = set(got.resident_extents)
        assert task.layout.pinned_extents <= held <= set(range(task.layout.extent_count))
        assert sum(run.extents for run in got.homes) == task.layout.extent_count
        for run in got.homes:
            assert run.tier in task.tiers
            stored[run.tier] += run.extents * 100
        if task.policy is SwapPolicy.RESIDENT:
            assert got.streamed_bytes == 0
        kept = min(task.reserved_bytes - task.workspace_bytes, task.layout.extent_count * 100)
        assert len(held) * 100 >= kept
        rings[task.domain] = max(rings[task.domain], got.ring_extents)
        resident += len(held)
        assert run_job(machine_of(task, got, device)) <= got.job_time_s + 1e-9
    assert all(stored[name] <= device.tiers[name].capacity_bytes for name in stored)
    used = (resident + sum(rings.values())) * 100 + max(task.workspace_bytes for task in tasks)
    assert used == answer.fast_bytes_used <= device.fast_bytes


@pytest.mark.slow
def test_plans_respect_every_limit_and_hold_under_attack() -> None:
    rng = np.random.default_rng(21)
    kinds: dict[str, int] = defaultdict(int)
    for _ in range(80):
        tasks, device = random_question(rng)
        answer = plan(tasks, device)
        if isinstance(answer, Infeasible):
            kinds[answer.kind] += 1
            assert answer.sentence
            assert "inf" not in answer.sentence
            assert "nan" not in answer.sentence
            continue
        kinds["admitted"] += 1
        check_limits(tasks, device, answer)
        way, windows = answer.scheduling, [answer.critical_time_s]
        seen = attack(tasks, answer.plans, device, way, windows, rng, horizon_s=0.6)
        assert seen.missed_runs == 0
        for got, worst in zip(answer.plans, seen.worst_response_s, strict=True):
            assert got.response_s is None or worst <= got.response_s + 3e-9
    assert kinds["admitted"] > 10
    assert {"deadline", "memory", "ring", "tier"} <= set(kinds)


@pytest.mark.slow
def test_where_a_task_is_said_to_be_too_many_the_others_are_admitted() -> None:
    rng = np.random.default_rng(6)
    named = 0
    for _ in range(150):
        tasks, device = random_question(rng)
        answer = plan(tasks, device)
        if isinstance(answer, Infeasible):
            found = re.search(r"the others would hold without (\w+)", answer.sentence)
            if found:
                named += 1
                rest = [task for task in tasks if task.name != found[1]]
                assert plan(rest, device).ok, answer.sentence
    assert named > 10
