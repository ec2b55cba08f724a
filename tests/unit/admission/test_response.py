"""Worst responses: against the demand test, against simulation, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulation.device import Releases, SimTask, simulate
from tests.unit.admission.reference import random_tasks

from tierline_operator.admission import response
from tierline_operator.admission.demand import SporadicTask, np_edf
from tierline_operator.admission.response import worst_responses


def whole_jobs(tasks: list[SporadicTask]) -> list[SporadicTask]:
    """The same tasks without preemption points."""
    return [
        SporadicTask(
            t.name,
            t.period_s,
            t.deadline_s,
            t.cost_s if t.deadline_s else 0.0,
            None if t.deadline_s else t.section_s or t.cost_s,
        )
        for t in tasks
    ]


def test_a_job_alone_responds_in_its_cost() -> None:
    assert worst_responses([SporadicTask("a", 0.1, 0.1, 0.03)]) == [pytest.approx(0.03)]


def test_the_longest_later_job_blocks_once() -> None:
    tasks = [SporadicTask("a", 0.1, 0.05, 0.01), SporadicTask("b", 0.2, 0.2, 0.03)]
    first, second = worst_responses(tasks)
    assert first == pytest.approx(0.04, abs=1e-8)
    assert second == pytest.approx(0.04, abs=1e-8)


def test_a_background_section_blocks_everybody() -> None:
    tasks = [SporadicTask("a", 0.1, 0.05, 0.01), SporadicTask("idle", 1, None, 0.02)]
    assert worst_responses(tasks) == [pytest.approx(0.03, abs=1e-8), None]


def test_a_refused_set_has_no_bounds() -> None:
    tasks = [SporadicTask("a", 0.1, 0.05, 0.04), SporadicTask("b", 0.1, 0.1, 0.04)]
    assert worst_responses(tasks) == [None, None]


def test_responses_meet_deadlines_exactly_when_the_test_accepts() -> None:
    rng = np.random.default_rng(6)
    checked = tight = 0
    for _ in range(400):
        tasks = random_tasks(rng, load=float(rng.uniform(0.2, 1.0)))
        verdict = np_edf(tasks)
        if not verdict.ok:
            continue
        checked += 1
        bounds = worst_responses(tasks)
        for task, bound in zip(tasks, bounds, strict=True):
            if task.deadline_s is not None:
                assert bound is not None
                assert task.cost_s - 1e-9 <= bound <= task.deadline_s + 1e-9
        if verdict.shortfall_s == 0:
            tight += any(
                bound is not None and bound >= (task.deadline_s or 0) - 2e-9
                for task, bound in zip(tasks, bounds, strict=True)
            )
    assert checked > 100
    assert tight > 5


def test_bounds_from_one_pass_lie_between_the_exact_ones_and_the_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(8)
    shares: list[float] = []
    for _ in range(400):
        tasks = random_tasks(rng, load=float(rng.uniform(0.2, 0.99)))
        exact = worst_responses(tasks)
        with monkeypatch.context() as many:
            many.setattr(response, "EXACT", 0)
            bounds = worst_responses(tasks)
        for task, least, bound in zip(tasks, exact, bounds, strict=True):
            assert (least is None) == (bound is None)
            if least is not None and bound is not None and task.deadline_s is not None:
                assert least <= bound <= task.deadline_s
                shares.append(least / bound)
    assert len(shares) > 100
    assert np.median(shares) > 0.7


def test_no_simulated_job_responds_later_and_some_respond_as_late() -> None:
    rng = np.random.default_rng(7)
    reached: list[float] = []
    for _ in range(120):
        tasks = whole_jobs(random_tasks(rng, load=float(rng.uniform(0.2, 0.9))))
        bounds = worst_responses(tasks)
        due = [index for index, task in enumerate(tasks) if task.deadline_s is not None]
        if any(bounds[index] is None for index in due):
            continue
        sims = [
            SimTask(
                t.period_s,
                t.deadline_s,
                t.section_s or t.cost_s if t.deadline_s is None else t.cost_s,
            )
            for t in tasks
        ]
        worst = [0.0] * len(tasks)
        for blocker in (None, *range(len(tasks))):
            for _ in range(8):
                first = [
                    1.0 if rng.random() < 0.6 else 1.0 + rng.random() * s.period_s for s in sims
                ]
                if blocker is not None:
                    first[blocker] = 1.0 - 1e-9
                adaptive = bool(rng.random() < 0.5)
                seen = simulate(
                    sims,
                    Releases(first, sporadic=0.4 if adaptive else 0.0, adaptive=adaptive),
                    until_s=1.5,
                    seed=int(rng.integers(1 << 30)),
                )
                worst = [max(a, b) for a, b in zip(worst, seen.worst_response_s, strict=True)]
        for index in due:
            bound = bounds[index]
            assert bound is not None
            assert worst[index] <= bound + 3e-9, (tasks, index)
            reached.append(worst[index] / bound)
    assert len(reached) > 100
    assert np.mean(np.array(reached) > 1 - 1e-5) > 0.7
