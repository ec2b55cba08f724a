"""The compiled engine is the simulator of the product: same draws, same times, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.bench.schedulability.attacks import starting
from tests.simulation.compiled.draws import Stream, seeds_of
from tests.simulation.compiled.runs import Attack, play, play_reference
from tests.simulation.compiled.tables import tables_of
from tests.simulation.mixedsets import mixed_device, mixed_set

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan
from tierline_operator.simulation.device import Span
from tierline_operator.simulation.from_plans import machine_of, models_of, starting_of
from tierline_operator.simulation.job import TaskModel

RECORD = 4000


def test_draws_are_uniform_and_differ_by_stream() -> None:
    stream = Stream(1)
    draws = [stream() for _ in range(4000)]
    assert 0 <= min(draws) <= max(draws) < 1
    assert np.mean(draws) == pytest.approx(0.5, abs=0.03)
    assert len({seed for run in range(100) for seed in seeds_of(run)}) == 400


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the first run compiles: 20 s of a processor that may be shared by many
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("scheduling", Scheduling)
def test_random_runs_end_at_the_same_times(scheduling: Scheduling, gpu: bool) -> None:
    """Admitted sets, and refused ones with their nearest plans, which are late and pile up."""
    rng = np.random.default_rng(list(Scheduling).index(scheduling))
    runs = jobs = misses = preemptions = 0
    for seed in range(40):
        demands = starting(seed, mixed_set(rng))
        device = replace(mixed_device(rng, demands), yields_while_waiting=not gpu)
        answer = plan(demands, device, scheduling=scheduling)
        plans = answer.plans if isinstance(answer, Admitted) else answer.nearest
        if not plans:
            continue
        models = models_of(demands, plans, device) + starting_of(demands, plans, device)
        machine = machine_of(plans, device, scheduling)
        attack = random_attack(rng, models, seed)
        expected = play_reference(models, machine, attack)
        got = play(tables_of(models, machine), [attack], record=RECORD)
        seen = got.seen[0]
        assert seen["failed"] == 0
        assert (seen["jobs"], seen["misses"]) == (expected.jobs, sum(expected.misses))
        assert (seen["latest_s"], seen["end_s"]) == (expected.latest_s, expected.end_s)
        assert seen["busy_s"] == pytest.approx(sum(expected.busy_s))
        assert seen["preemptions"] == expected.preemptions
        assert seen["rings_lost"] == expected.rings_lost
        worst = [max(times, default=0.0) for times in expected.responses_s]
        assert list(got.worst_s[0]) == worst
        assert [ends(got.finished[: expected.jobs], task) for task in range(len(models))] == [
            sorted(last_layers(expected.spans, task)) for task in range(len(models))
        ]
        runs, jobs = runs + 1, jobs + expected.jobs
        misses, preemptions = misses + int(seen["misses"]), preemptions + expected.preemptions
    assert runs > 15
    assert jobs > 200
    assert misses > 0
    assert (preemptions > 0) == (scheduling is not Scheduling.NON_PREEMPTIVE)


def random_attack(rng: np.random.Generator, models: list[TaskModel], seed: int) -> Attack:
    """Any release pattern, with durations in full or not."""

    def either(one: float, other: float) -> float:
        return one if rng.random() < 0.5 else other

    return Attack(
        first_s=tuple(1 + either(0.0, model.period_s * rng.random()) for model in models),
        until_s=2.0,
        seed=seed,
        sporadic=either(0.0, 0.5),
        adaptive=bool(rng.random() < 0.5),
        delayed=int(rng.integers(len(models))) if rng.random() < 0.5 else None,
        busy=either(1.0, 0.5),
        layer_least=either(1.0, 0.3),
        copy_least=either(1.0, 0.3),
        hold=either(0.0, 0.9),
    )


def ends(finished: np.ndarray[tuple[int, int], np.dtype[np.float64]], task: int) -> list[float]:
    return sorted(float(end) for owner, end in finished if owner == task)


def last_layers(spans: list[Span], task: int) -> list[float]:
    """The end of the last layer of each job of a task."""
    by_job: dict[int, float] = {}
    for span in spans:
        if span.what == "compute" and span.task == task:
            by_job[span.job] = max(by_job.get(span.job, 0.0), span.end_s)
    return list(by_job.values())
