"""A release is what is proved: several jobs of it, what passes between them, and its late begin.

Sets are played until they are as late as they get; with the charge taken out, they are later than
what was proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.preemptive import INSTANT_S, START_S, attack, play
from tests.unit.planning.shapes import device, task

from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand
from tierline_operator.simulation import device as simulated
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.job import Job
from tierline_operator.simulation.releases import Pattern

CPU = device(100, dispatch_s=0.005)
LONG = [
    task("b", 1130, 1130, 250, megabytes=1, layers=1),
    task("c", 1370, 1370, 250, megabytes=1, layers=1),
]
NON_PREEMPTIVE = Scheduling.NON_PREEMPTIVE


def of_arenas(name: str, period_ms: float, deadline_ms: float, *times_ms: float) -> TaskDemand:
    """One layer in each arena."""
    shapes = [LayerShape(10**6, arena=arena) for arena in range(len(times_ms))]
    return replace(
        task(name, period_ms, deadline_ms, 1),
        layout=lay_out(shapes, 10**6),
        compute_s=tuple(one / 1e3 for one in times_ms),
    )


PAIR = [replace(of_arenas("a", 700, 620, 20, 20), between_s=0.001), *LONG]
CROPS = [
    replace(task("a", 1000, 600, 60, megabytes=1, layers=1), calls=(4,), between_s=0.02),
    task("b", 1300, 1300, 100, megabytes=1, layers=1),
    task("c", 1370, 1370, 100, megabytes=1, layers=1),
]


def admitted(demands: Sequence[TaskDemand], where: DeviceCapacity = CPU) -> Admitted:
    answer = plan(demands, where, scheduling=NON_PREEMPTIVE)
    assert isinstance(answer, Admitted), answer.sentence
    return answer


def worst_s(demands: Sequence[TaskDemand], answer: Admitted, where: DeviceCapacity = CPU) -> float:
    """The longest response of the first task, with the others before each of its jobs."""
    models = models_of(demands, answer.plans, where)
    machine = machine_of(answer.plans, where, answer.scheduling)
    longest = 0.0
    for later_ms in range(0, 400, 10):
        first = [START_S + INSTANT_S, START_S, *[START_S + later_ms / 1e3] * (len(models) - 2)]
        for until in (START_S + 0.5, START_S + 2):
            seen = play(models, machine, Pattern(first, until))
            longest = max(longest, *seen.responses_s[0])
    return longest


@pytest.mark.parametrize("demands", [PAIR, CROPS], ids=["two models", "four crops"])
def test_nobody_due_later_comes_between_the_jobs_of_a_release(
    monkeypatch: pytest.MonkeyPatch, demands: list[TaskDemand]
) -> None:
    answer = admitted(demands)
    bound_s = answer.plans[0].response_s
    assert bound_s is not None
    assert worst_s(demands, answer) <= bound_s

    def not_kept(run: simulated._Run, job: Job) -> None:
        run._let_go()
        job.begin_call()
        run._at(run.now + 1e-9, lambda: run.waiting.update({job.key: job}))

    monkeypatch.setattr(simulated._Run, "_end_call", not_kept)
    assert worst_s(demands, answer) > bound_s


def test_a_release_of_several_jobs_has_all_their_time() -> None:
    once, crops = replace(CROPS[0], calls=(), between_s=0.0), CROPS[0]
    alone, four = admitted([once]).plans[0], admitted([crops]).plans[0]
    assert four.calls == 4
    assert four.job_time_s == pytest.approx(4 * alone.job_time_s + 0.02)
    assert four.call_s == pytest.approx(alone.job_time_s)
    # a job of it keeps others waiting no longer than itself
    other = task("z", 2000, 75 + 10, 5, megabytes=1, layers=1)
    assert plan([crops, other], CPU, scheduling=NON_PREEMPTIVE).ok
    # and a set that holds only if it is counted once is refused
    short = replace(crops, deadline_s=0.33)
    assert isinstance(plan([short, *CROPS[1:]], CPU), Infeasible)


def test_streams_of_each_job_are_counted() -> None:
    streamed = task("s", 2000, 1900, 20, megabytes=4, layers=4, policy=SwapPolicy.SWAP)
    once = admitted([streamed], device(3)).plans[0]
    thrice = admitted([replace(streamed, calls=(3,))], device(3)).plans[0]
    assert thrice.job_time_s == pytest.approx(3 * once.job_time_s)


def test_what_asks_late_is_due_sooner_after_that() -> None:
    late = replace(LONG[0], jitter_s=0.2)
    plain, planned = admitted([LONG[0]]).plans[0], admitted([late]).plans[0]
    assert plain.response_s is not None
    assert planned.response_s == pytest.approx(plain.response_s + 0.2)
    assert planned.jitter_s == 0.2
    assert not plan([replace(late, deadline_s=0.45)], CPU).ok
    hopeless = plan([replace(LONG[0], jitter_s=0.9)], replace(CPU, margins=Margins(1.3)))
    assert isinstance(hopeless, Infeasible)
    assert "after its release" in hopeless.sentence
    # also where it is more than the deadline itself, and where it comes to others
    never = replace(LONG[0], deadline_s=0.1, jitter_s=0.2)
    assert isinstance(plan([never], CPU), Infeasible)
    proven = settle([LONG[1]], CPU)
    assert isinstance(proven, ProvenSet)
    assert isinstance(admit(proven, never), Infeasible)


@pytest.mark.slow
@pytest.mark.parametrize("scheduling", Scheduling)
def test_random_releases_hold(scheduling: Scheduling) -> None:
    attacked = 0
    for seed in range(60):
        rng = np.random.default_rng((seed, 11))
        demands = []
        for number in range(int(rng.integers(2, 5))):
            period_ms = float(rng.uniform(150, 900))
            layers = int(rng.integers(2, 6))
            one = task(
                f"task-{number}",
                period_ms,
                period_ms * float(rng.uniform(0.5, 1)),
                period_ms * float(rng.uniform(0.01, 0.06)),
                layers=layers,
                megabytes=layers,
                policy=list(SwapPolicy)[int(rng.integers(len(SwapPolicy)))],
            )
            calls = int(rng.integers(1, 4))
            between_s = period_ms / 1e3 * float(rng.uniform(0, 0.05)) * (calls > 1)
            demands.append(replace(one, calls=(calls,), between_s=between_s))
        where = device(int(rng.integers(10, 30)), dispatch_s=0.001)
        answer = plan(demands, where, scheduling=scheduling)
        if isinstance(answer, Infeasible):
            continue
        attacked += 1
        windows = [answer.critical_time_s]
        seen = attack(demands, answer.plans, where, answer.scheduling, windows, rng)
        assert seen.missed_runs == 0
        for granted, response_s in zip(answer.plans, seen.worst_response_s, strict=True):
            assert granted.response_s is None or response_s <= granted.response_s + 3e-9
    assert attacked > 10
