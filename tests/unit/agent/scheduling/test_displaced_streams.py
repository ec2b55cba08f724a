"""What a displaced stream still has in flight is in the plan of the job that displaces it.

Plans are made as for an agent (two extents in flight on a link) and played by the agent's own
executor in virtual time: no response is above its bound, and no job has the device longer than it
may. One that had would lose its rank for what others did. Tasks without a deadline fill what the
others leave, and cost them no more than the section that was proved with.

So it is with what is copied ahead of a next job: nobody waits longer than planned for the extents
that are under way, and that job itself is the sooner done.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.simulation.preemptive import play
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import device, task

from tierline_agent.policy import preemption
from tierline_agent.scheduling.execution import Execution
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

TOLERANCE_S = 5e-9
CRITICALITIES = (Criticality.HARD, Criticality.HARD, Criticality.BEST_EFFORT)
DRAM = TierCapacity(10**9, LinkRate(100e6, in_flight=2))
NVME = TierCapacity(10**9, LinkRate(20e6, in_flight=2))
SAME = {
    Scheduling.LAYER_PREEMPTIVE: preemption.Scheduling.LAYER_PREEMPTIVE,
    Scheduling.RING_KEEPING: preemption.Scheduling.RING_KEEPING,
}
BOTH = {"dram": DRAM, "nvme": NVME}


def played(
    folder: Path,
    demands: Sequence[TaskDemand],
    answer: Admitted,
    where: DeviceCapacity,
    pattern: Pattern,
) -> list[list[float]]:
    """Responses by task, as the executor serves them."""
    return node_after(folder, demands, answer, where, pattern).responses_s


def node_after(
    folder: Path,
    demands: Sequence[TaskDemand],
    answer: Admitted,
    where: DeviceCapacity,
    pattern: Pattern,
) -> VirtualNode:
    """What has served them, closed."""
    models = models_of(demands, answer.plans, where)
    arrivals = Arrivals([model.period_s for model in models], pattern)
    links = [tier.link for tier in where.tiers.values()]
    # A job that never yields asks nobody how.
    way = SAME.get(answer.scheduling, preemption.Scheduling.LAYER_PREEMPTIVE)
    node = VirtualNode(folder, models, arrivals, links, way, dispatch_s=where.dispatch_s)
    try:
        node.run()
    finally:
        node.close()
    for granted, jobs in zip(answer.plans, node.held_s, strict=True):
        for held_s, may_s in jobs:
            assert held_s <= (may_s or granted.job_time_s) + TOLERANCE_S, granted.name
    assert not any(node.contained)
    hold(answer, node.responses_s)
    return node


def hold(answer: Admitted, responses: Sequence[Sequence[float]]) -> None:
    """Every response is within its bound."""
    for granted, seen in zip(answer.plans, responses, strict=True):
        if granted.response_s is not None:
            assert max(seen, default=0.0) <= granted.response_s + TOLERANCE_S, granted.name


def urgent(deadline_ms: float) -> TaskDemand:
    """It streams two extents; the second one arrives long before it is read."""
    one = task("urgent", 1000, deadline_ms, 101, megabytes=2, layers=2, policy=SwapPolicy.SWAP)
    return replace(one, compute_s=(0.1, 0.001))


def copies(tier: str) -> TaskDemand:
    """Its jobs do little but wait for extents, so that two of them are always on their way."""
    more = {"megabytes": 20, "layers": 20, "policy": SwapPolicy.SWAP}
    return task("copies", 4000, 4000, 20, tiers=(tier,), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tier", "deadline_ms"), [("dram", 300), ("nvme", 450)], ids=["same link", "slower link"]
)
@pytest.mark.parametrize("scheduling", list(SAME))
def test_a_stream_waits_for_all_that_the_displaced_one_has_in_flight(
    scheduling: Scheduling, tier: str, deadline_ms: float, tmp_path: Path
) -> None:
    where = device(14, tiers={"dram": DRAM, "nvme": NVME})
    demands = [urgent(deadline_ms), copies(tier)]
    answer = plan(demands, where, scheduling=scheduling)
    assert isinstance(answer, Admitted)
    assert answer.scheduling is scheduling
    worst = 0.0
    for late_ms in range(0, 120, 3):
        pattern = Pattern([1.0 + late_ms / 1000, 1.0], 1.4)
        worst = max(worst, *played(tmp_path, demands, answer, where, pattern)[0])
    # It did wait for more than one extent.
    full_s = where.tiers[tier].link.copy_s(10**6)
    alone_s = 2 * DRAM.link.copy_s(10**6) + 0.101
    assert worst > alone_s + 1.5 * full_s
    machine = machine_of(answer.plans, where, scheduling)
    seen = play(models_of(demands, answer.plans, where), machine, Pattern([1.03, 1.0], 1.4))
    hold(answer, seen.responses_s)


def test_a_job_waits_for_what_is_copied_ahead_and_it_is_planned(
    tmp_path: Path,
) -> None:
    where = device(14, tiers=BOTH)
    demands = [replace(urgent(300), period_s=4.0, deadline_s=3.0), copies("nvme")]
    answer = plan(demands, where, scheduling=Scheduling.NON_PREEMPTIVE)
    assert isinstance(answer, Admitted)
    (_, (lasts_s, *_)) = played(tmp_path, demands, answer, where, Pattern([9.0, 1.0], 1.4))
    worst_s = 0.0
    for late_ms in range(0, 120, 3):
        first_s = [1.0 + lasts_s + late_ms / 1000, 1.0]
        worst_s = max(worst_s, *played(tmp_path, demands, answer, where, Pattern(first_s, 4.0))[0])
    # It did wait for most of an extent of the slower tier, which is not its own.
    alone_s = DRAM.link.flight_s(10**6) + 0.101
    assert alone_s + 0.9 * NVME.link.copy_s(10**6) < worst_s
    assert worst_s > alone_s + DRAM.link.flight_s(10**6)


def test_a_job_that_follows_its_task_finds_its_first_extents(tmp_path: Path) -> None:
    where = device(14, tiers=BOTH)
    demands = [replace(copies("nvme"), period_s=2.5, deadline_s=2.5)]
    answer = plan(demands, where, scheduling=Scheduling.NON_PREEMPTIVE)
    assert isinstance(answer, Admitted)
    ((first_s, *others_s),) = played(tmp_path, demands, answer, where, Pattern([1.0], 9.0))
    slots = answer.plans[0].ring_extents
    assert len(others_s) == 3
    for response_s in others_s:
        assert response_s < first_s - (slots - 1) * NVME.link.copy_s(10**6)


def test_jobs_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """Its passes stop the event loop: 22 ms for what 1,900 jobs on a GPU had left."""
    where = device(14, tiers=BOTH)
    demands = [replace(urgent(300), period_s=2.0, deadline_s=1.5), copies("nvme")]
    answer = plan(demands, where, scheduling=Scheduling.NON_PREEMPTIVE)
    assert isinstance(answer, Admitted)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        jobs = sum(map(len, played(tmp_path, demands, answer, where, Pattern([1.0, 1.0], 9.0))))
        gc.collect()
        left = [one for one in gc.garbage if isinstance(one, Execution)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert jobs > 4
    # The executor itself is part of a cycle, with what it served last.
    assert len(left) <= len(demands)


def test_a_job_that_asks_as_a_stream_ends_finds_none_ahead_after_it(tmp_path: Path) -> None:
    """The stream has begun it by itself, and nobody has told the executor yet."""
    where = device(14, tiers=BOTH)
    demands = [replace(urgent(300), period_s=4.0, deadline_s=3.0), copies("nvme")]
    answer = plan(demands, where, scheduling=Scheduling.NON_PREEMPTIVE)
    assert isinstance(answer, Admitted)
    alone = node_after(tmp_path, demands, answer, where, Pattern([9.0, 1.0], 1.4))
    (moment_s,) = alone.followed_s
    both = node_after(tmp_path, demands, answer, where, Pattern([moment_s, 1.0], 4.0))
    assert both.followed_s[0] == moment_s
    ((response_s, *_), _) = both.responses_s
    assert response_s < DRAM.link.flight_s(10**6) + 0.101 + NVME.link.copy_s(10**6)


@pytest.mark.parametrize("scheduling", [Scheduling.NON_PREEMPTIVE, *SAME])
def test_no_response_is_above_its_bound(scheduling: Scheduling, tmp_path: Path) -> None:
    admitted = filling = 0
    for seed in range(40):
        rng = np.random.default_rng((seed, 5))
        demands = []
        for number in range(int(rng.integers(2, 5))):
            period_ms = float(rng.uniform(100, 2000))
            layers = int(rng.integers(2, 8))
            demands.append(
                task(
                    f"task-{number}",
                    period_ms,
                    period_ms * float(rng.uniform(0.5, 1)),
                    period_ms * float(rng.uniform(0.02, 0.2)),
                    layers=layers,
                    megabytes=layers * int(rng.integers(1, 3)),
                    tiers=(("dram", "nvme")[int(rng.integers(2))],),
                    policy=list(SwapPolicy)[int(rng.integers(len(SwapPolicy)))],
                    domain=("a", "b")[int(rng.integers(2))],
                    criticality=CRITICALITIES[int(rng.integers(len(CRITICALITIES)))],
                )
            )
        where = device(int(rng.integers(14, 40)), tiers={"dram": DRAM, "nvme": NVME})
        answer = plan(demands, where, scheduling=scheduling)
        if not isinstance(answer, Admitted) or answer.scheduling is not scheduling:
            continue
        admitted += 1
        filling += sum(granted.response_s is None for granted in answer.plans)
        for _ in range(5):
            first_s = [1.0 + float(rng.uniform(0, 0.3)) for _ in demands]
            played(tmp_path, demands, answer, where, Pattern(first_s, 3.0))
    assert admitted >= 5
    assert filling >= 2, "tasks that run in what is left belong to it"
