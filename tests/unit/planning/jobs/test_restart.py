"""The restart penalty bounds every preempted job of the simulator, and is reached on one link."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.unit.planning.jobs.recursion import layer_times
from tests.unit.planning.shapes import layout_of, random_layout

from tierline_api.layout import ArenaLayout
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline, RingTooSmall
from tierline_operator.planning.jobs.restart import restart_penalty_s
from tierline_operator.simulation.device import Machine, Seen, simulate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

NOTHING = layout_of([])


@dataclass(frozen=True)
class Case:
    """One streaming task, to be interrupted."""

    layout: ArenaLayout
    compute_s: tuple[float, ...]
    link_of_extent: tuple[int, ...]
    links: tuple[LinkRate, ...]
    resident: frozenset[int]
    ring_extents: int
    blocked_extents: int = 1

    def pipeline(self) -> Pipeline:
        busy = self.blocked_extents * max(link.copy_s(100) for link in self.links)
        return Pipeline(self.layout, self.compute_s, self.link_of_extent, self.links, busy)

    def interrupted(self, moments: list[float], each_s: float) -> Seen:
        """The job, preempted for `each_s` at the gates that follow these moments."""
        victim = TaskModel(
            name="victim",
            period_s=1e6,
            deadline_s=1e6,
            layout=self.layout,
            compute_s=self.compute_s,
            resident=self.resident,
            ring_extents=self.ring_extents,
            link_of_extent=self.link_of_extent,
            preemptible=True,
        )
        others = [
            TaskModel(f"other {at}", 1e6, 1e3, NOTHING, (each_s,), frozenset(), 0, ())
            for at in moments
        ]
        machine = Machine(
            self.links, 100, Scheduling.LAYER_PREEMPTIVE, blocked_extents=self.blocked_extents
        )
        periods = [1e6] * (1 + len(others))
        releases = Arrivals(periods, Pattern([0.0, *moments], 1e5))
        return simulate([victim, *others], machine, releases, AgentPolicy())


def random_case(rng: np.random.Generator, links: int) -> Case:
    layout = random_layout(rng, pinned=False)
    return Case(
        layout=layout,
        compute_s=tuple(float(x) for x in rng.random(layout.layer_count) * 2),
        link_of_extent=tuple(int(rng.integers(links)) for _ in range(layout.extent_count)),
        links=tuple(LinkRate(float(rng.choice([40.0, 100.0, 300.0])), 0.05) for _ in range(links)),
        resident=frozenset(x for x in range(layout.extent_count) if rng.random() < 0.3),
        ring_extents=int(rng.integers(5, 9)),
    )


def own_time_s(seen: Seen, moments: list[float], each_s: float) -> float:
    """What the victim took, less what others ran before its end."""
    (victim_s,) = seen.responses_s[0]
    ends = [at + times[0] for at, times in zip(moments, seen.responses_s[1:], strict=True)]
    return victim_s - each_s * sum(end <= victim_s + 1e-12 for end in ends)


@pytest.mark.parametrize("links", [1, 2])
def test_no_preempted_job_takes_longer_however_its_layers_share_its_time(links: int) -> None:
    rng = np.random.default_rng(20 + links)
    preempted = 0
    for _ in range(60):
        case = random_case(rng, links)
        longest = [one * float(rng.choice([1.0, 3.0])) for one in case.compute_s]
        busy = max(link.copy_s(100) for link in case.links)
        pipeline = Pipeline(
            *(case.layout, case.compute_s, case.link_of_extent, case.links, busy),
            longest_s=longest,
        )
        alone = pipeline.total_s(case.resident, case.ring_extents)
        penalty = restart_penalty_s(pipeline, case.resident, case.ring_extents)
        for _ in range(6):
            left, times = sum(case.compute_s), [0.0] * len(longest)
            for layer in rng.permutation(len(longest)):
                times[layer] = min(longest[layer], left) * float(rng.choice([1.0, rng.random()]))
                left -= times[layer]
            other = replace(case, compute_s=tuple(times))
            moments = sorted(float(x) for x in rng.random(int(rng.integers(1, 4))) * alone)
            each_s = float(rng.choice([1e-6, 0.5, 4.0]))
            seen = other.interrupted(moments, each_s)
            preempted += seen.preemptions
            spent = own_time_s(seen, moments, each_s)
            assert spent <= alone + penalty * seen.preemptions + 1e-9
    assert preempted > 100


@pytest.mark.parametrize("links", [1, 2])
def test_no_preempted_job_takes_longer(links: int) -> None:
    rng = np.random.default_rng(links)
    preempted = 0
    for _ in range(150):
        case = random_case(rng, links)
        pipeline = case.pipeline()
        alone = pipeline.total_s(case.resident, case.ring_extents)
        penalty = restart_penalty_s(pipeline, case.resident, case.ring_extents)
        for _ in range(6):
            count = int(rng.integers(1, 4))
            moments = sorted(float(x) for x in rng.random(count) * alone)
            each_s = float(rng.choice([1e-6, 0.5, 4.0]))
            seen = case.interrupted(moments, each_s)
            preempted += seen.preemptions
            spent = own_time_s(seen, moments, each_s)
            assert spent <= alone + penalty * seen.preemptions + 1e-9
    assert preempted > 300


def test_one_preemption_at_the_worst_gate_costs_just_the_penalty() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        case = random_case(rng, 1)
        case = Case(**{**case.__dict__, "blocked_extents": 0})
        pipeline = case.pipeline()
        alone_s = pipeline.total_s(case.resident, case.ring_extents)
        penalty = restart_penalty_s(pipeline, case.resident, case.ring_extents)
        # long enough for the copy under way to end, and an instant before each layer
        worst = 0.0
        for start_s, _ in layer_times(pipeline, case.resident, case.ring_extents):
            moment = max(start_s - 1e-9, 1e-9)
            seen = case.interrupted([moment], 50.0)
            worst = max(worst, own_time_s(seen, [moment], 50.0) - alone_s)
        assert worst == pytest.approx(penalty, abs=1e-6)


def test_a_copy_heavy_end_costs_the_whole_ring_and_a_resident_job_nothing() -> None:
    layout = layout_of([100] * 20)
    pipeline = Pipeline(layout, [10.0] * 8 + [0.01] * 12, [0] * 20, [LinkRate(100.0)])
    # before the fast layers begin, the ring is full: eleven extents of a second each are lost
    assert restart_penalty_s(pipeline, frozenset(), 12) == pytest.approx(11.0)
    assert restart_penalty_s(pipeline, frozenset(range(20)), 0) == 0
    with pytest.raises(RingTooSmall):
        restart_penalty_s(pipeline, frozenset(), 0)


def test_compute_bound_jobs_lose_about_one_layer_load() -> None:
    pipeline = Pipeline(layout_of([100] * 20), [10.0] * 20, [0] * 20, [LinkRate(100.0)])
    assert restart_penalty_s(pipeline, frozenset(), 12) == pytest.approx(1.0)
