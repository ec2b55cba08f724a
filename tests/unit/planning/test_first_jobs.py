"""A program that starts keeps others waiting no longer than its proof charged, however often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.preemptive import attack
from tests.unit.planning.shapes import device, task

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand
from tierline_operator.planning.search.residents import Search

CPU = device(100, dispatch_s=0.005)
YIELDING = replace(CPU, supports=frozenset(Scheduling))
URGENT = task("urgent", 400, 100, 10, megabytes=1, layers=1)
SLOW = task("slow", 2000, 2000, 20, megabytes=4, layers=4)


def starting(one: TaskDemand, section_ms: float, extra_ms: float = 0.0) -> TaskDemand:
    return replace(one, first_section_s=section_ms / 1e3, first_extra_s=extra_ms / 1e3)


def admitted(
    *demands: TaskDemand, where: DeviceCapacity = CPU, way: Scheduling | None = None
) -> Admitted:
    answer = plan(demands, where, scheduling=way)
    assert isinstance(answer, Admitted), answer.sentence
    return answer


def response_s(answer: Admitted, at: int = 0) -> float:
    found = answer.plans[at].response_s
    assert found is not None
    return found


def test_what_was_not_measured_is_not_charged() -> None:
    assert [one.first_s for one in admitted(URGENT, SLOW).plans] == [0, 0]


@pytest.mark.parametrize("margin", [1.0, 1.3])
def test_the_longest_stretch_of_first_jobs_blocks_everybody(margin: float) -> None:
    where = replace(CPU, margins=Margins(margin, 1.0))
    answer = admitted(URGENT, starting(SLOW, 50), where=where)
    assert answer.plans[1].first_s == pytest.approx(0.050 * margin + 0.005)
    assert answer.blocker == "slow"
    own_s = answer.plans[0].job_time_s
    assert response_s(answer) == pytest.approx(own_s + answer.plans[1].first_s, abs=1e-6)


def test_a_job_that_keeps_the_device_does_so_in_its_first_jobs_too() -> None:
    """Also the task's own later deadline: a job of rank WARMUP blocks whatever comes."""
    slow = starting(SLOW, 1, extra_ms=20)
    answer = admitted(URGENT, slow, way=Scheduling.NON_PREEMPTIVE)
    assert answer.plans[1].first_s == pytest.approx(answer.plans[1].job_time_s + 0.020)
    alone = admitted(URGENT, SLOW, way=Scheduling.NON_PREEMPTIVE)
    more_s = response_s(answer, 1) - response_s(alone, 1)
    assert more_s == pytest.approx(answer.plans[1].first_s, abs=1e-6)


def test_it_gives_way_where_its_task_does() -> None:
    slow = starting(SLOW, 1, extra_ms=500)
    assert isinstance(plan([URGENT, slow], CPU), Infeasible)
    answer = admitted(URGENT, slow, where=YIELDING)
    assert answer.plans[1].preemptible
    assert answer.plans[1].first_s == pytest.approx(answer.plans[1].layer_s)


def test_a_set_without_that_slack_is_refused() -> None:
    answer = plan([URGENT, starting(SLOW, 95)], CPU)
    assert isinstance(answer, Infeasible)
    assert answer.blocker == "slow"
    assert isinstance(plan([URGENT, starting(SLOW, 70)], CPU), Admitted)


def test_one_task_more_is_admitted_by_the_same_charge() -> None:
    proven = settle([URGENT], CPU)
    assert isinstance(proven, ProvenSet)
    more = admit(proven, starting(SLOW, 60))
    assert isinstance(more, ProvenSet)
    assert response_s(Admitted(more.plans, 0, 0, 0, None, 0)) <= URGENT.deadline_s
    bounds = more.responses_s()
    planned = admitted(URGENT, starting(SLOW, 60))
    assert bounds[0] == pytest.approx(response_s(planned), abs=1e-6)
    assert isinstance(admit(proven, starting(SLOW, 95)), Infeasible)


def test_whoever_starts_faster_than_another_is_admitted_quickly() -> None:
    proven = settle([URGENT, starting(SLOW, 60)], CPU)
    assert isinstance(proven, ProvenSet)
    third = starting(task("third", 3000, 3000, 10, megabytes=1, layers=1), 30)
    assert proven.with_task(third) is not None
    assert proven.with_task(starting(third, 80)) is None


def test_a_layer_that_was_slow_in_a_short_job_blocks_as_long() -> None:
    """Its part of the longest job says nothing of it."""
    slow = task("slow", 2000, 2000, 200, megabytes=4, layers=4)
    answer = admitted(URGENT, slow, where=YIELDING)
    assert answer.plans[1].layer_s == pytest.approx(0.055)
    longer = admitted(URGENT, replace(slow, longest_s=(0.05, 0.05, 0.07, 0.05)), where=YIELDING)
    assert longer.plans[1].layer_s == pytest.approx(0.075)
    assert response_s(longer) == pytest.approx(response_s(answer) + 0.02, abs=1e-6)
    assert isinstance(
        plan([URGENT, replace(slow, longest_s=(0.05, 0.05, 0.3, 0.05))], YIELDING), Infeasible
    )


@pytest.mark.parametrize("way", list(Scheduling))
def test_the_simulator_plays_them_and_bounds_hold_because_they_are_charged(
    monkeypatch: pytest.MonkeyPatch, way: Scheduling
) -> None:
    demands = [URGENT, starting(SLOW, 60, extra_ms=15)]

    def worst_s() -> tuple[float, float]:
        answer = admitted(*demands, where=YIELDING, way=way)
        windows = [answer.critical_time_s, URGENT.deadline_s]
        rng = np.random.default_rng(3)
        seen = attack(demands, answer.plans, YIELDING, answer.scheduling, windows, rng)
        assert seen.missed_runs == 0
        return seen.worst_response_s[0], response_s(answer)

    longest_s, bound_s = worst_s()
    assert 0.9 * bound_s < longest_s <= bound_s + 2e-9
    monkeypatch.setattr(Search, "first", lambda *_args: (0, 0))
    longest_s, bound_s = worst_s()
    assert longest_s > bound_s
