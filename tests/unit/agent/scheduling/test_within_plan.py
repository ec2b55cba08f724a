"""A job within its plan keeps its rank, whatever others do to it: the agent's executor and lease
policy in virtual time, and the product's simulator, on sets that need it to the last millisecond.

Each set is played again without its guard, and is late then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulation.preemptive import play
from tests.unit.agent.scheduling.test_displaced_streams import BOTH
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import device, task

from tierline_agent.policy import preemption
from tierline_agent.policy.preemption import Allowance
from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission import preemption as charges
from tierline_operator.admission.preemption import Flags, Ints, Jobs, Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search import residents
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

KEEPING = preemption.Scheduling.RING_KEEPING
TOLERANCE_S = 5e-9


def admitted(demands: Sequence[TaskDemand], where: DeviceCapacity) -> Admitted:
    answer = plan(demands, where, scheduling=Scheduling.RING_KEEPING)
    assert isinstance(answer, Admitted), answer.sentence
    assert answer.scheduling is Scheduling.RING_KEEPING
    return answer


def played(
    folder: Path,
    demands: Sequence[TaskDemand],
    answer: Admitted,
    where: DeviceCapacity,
    pattern: Pattern,
) -> VirtualNode:
    models = models_of(demands, answer.plans, where)
    arrivals = Arrivals([model.period_s for model in models], pattern)
    links = [tier.link for tier in where.tiers.values()]
    node = VirtualNode(folder, models, arrivals, links, KEEPING, dispatch_s=where.dispatch_s)
    try:
        node.run()
    finally:
        node.close()
    return node


def late(answer: Admitted, responses_s: Sequence[Sequence[float]]) -> list[str]:
    """Tasks with a job above its bound."""
    return [
        granted.name
        for granted, seen in zip(answer.plans, responses_s, strict=True)
        if granted.response_s is not None and max(seen) > granted.response_s + TOLERANCE_S
    ]


# -- ways back

WAYS_BACK = [
    task("hard", 3000, 2000, 150),
    task("often", 40, 40, 6, layers=1),
    task("later", 3000, 3000, 320, layers=32),
]
"""`often` preempts `hard` again and again: with its ways back that takes more than its plan says.
If it loses its rank for that, `later` goes first."""
FAST = device(60, dispatch_s=0.005)
TOGETHER = Pattern([1.0, 1.001, 1.002], 1.9)


def test_ways_back_are_not_the_jobs_own_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = admitted(WAYS_BACK, FAST)
    node = played(tmp_path, WAYS_BACK, answer, FAST, TOGETHER)
    assert node.preemptions > 5
    assert node.contained == [0, 0, 0]
    assert late(answer, node.responses_s) == []
    monkeypatch.setattr(Allowance, "budget_ns", lambda self, *_: self.planned_ns)
    without = played(tmp_path, WAYS_BACK, answer, FAST, TOGETHER)
    assert late(answer, without.responses_s) == ["hard"]


def test_the_simulator_plays_the_limit_of_hard_jobs() -> None:
    answer = admitted(WAYS_BACK, FAST)
    models = models_of(WAYS_BACK, answer.plans, FAST)
    machine = machine_of(answer.plans, FAST, answer.scheduling)
    seen = play(models, machine, TOGETHER)
    assert seen.contained == [0, 0, 0]
    assert late(answer, seen.responses_s) == []
    assert models[0].budget_s is not None
    tight = replace(models[0], budget_s=models[0].budget_s - 0.03)
    cut = play([tight, *models[1:]], machine, TOGETHER)
    assert cut.contained == [1, 0, 0]
    assert late(answer, cut.responses_s) == ["hard"]


# -- copies that others leave under way


def yields_in_mid_stream() -> list[TaskDemand]:
    """A Soft job that has had its mean, with a slow tier's copies under way, and one that waits."""
    sizes, times = [0] * 98 + [10**6] * 13, [0.004567] * 98 + [0.0005] * 13
    streams = {"policy": SwapPolicy.SWAP, "tiers": ("nvme",), "criticality": Criticality.SOFT}
    soft = replace(
        task("soft", 1200, 1125, 1, **streams),  # type: ignore[arg-type]
        layout=lay_out([LayerShape(size) for size in sizes], 10**6),
        compute_s=tuple(times),
        mean_compute_s=(0.0005,) * len(times),
    )
    more = {"policy": SwapPolicy.SWAP, "tiers": ("dram",)}
    return [soft, task("hard", 9000, 3332, 216, layers=17, megabytes=17, **more)]  # type: ignore[arg-type]


SLOW = device(14, tiers=BOTH)


def moments(folder: Path, demands: Sequence[TaskDemand], answer: Admitted) -> Iterator[Pattern]:
    """The Hard job begins while the Soft task's next extents are on their way."""
    first = played(folder, demands, answer, SLOW, Pattern([1.0, 9.0], 1.1))
    end_s = 1.0 + first.responses_s[0][0]
    for later_ms in range(0, 60, 4):
        yield Pattern([1.0, end_s + later_ms / 1000], 2.3)


def test_a_job_goes_on_after_what_a_soft_one_has_under_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    demands = yields_in_mid_stream()
    answer = admitted(demands, SLOW)
    assert answer.plans[0].response_s is None
    assert answer.plans[1].preemptible
    for pattern in moments(tmp_path, demands, answer):
        node = played(tmp_path, demands, answer, SLOW, pattern)
        assert node.contained[1] == 0
        assert late(answer, node.responses_s) == []

    def naive(jobs: Jobs, _preemptible: Flags) -> Ints:
        return jobs.penalty

    monkeypatch.setattr(charges, "going_on_ns", naive)
    monkeypatch.setattr(residents, "going_on_ns", naive)
    answer = admitted(demands, SLOW)
    lates = [
        late(answer, played(tmp_path, demands, answer, SLOW, pattern).responses_s)
        for pattern in moments(tmp_path, demands, answer)
    ]
    assert ["hard"] in lates
