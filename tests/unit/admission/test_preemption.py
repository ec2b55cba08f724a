"""Which job pays for a preemption, and what still blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tierline_operator.admission.preemption import Charges, Jobs, PlannedJob, Scheduling

RESUME = 2
URGENT = PlannedJob(deadline_ns=10, cost_ns=3, section_ns=3, layer_ns=1, penalty_ns=0, streams=True)
RESIDENT = PlannedJob(
    deadline_ns=20, cost_ns=5, section_ns=5, layer_ns=2, penalty_ns=0, streams=False
)
LONG = PlannedJob(deadline_ns=90, cost_ns=40, section_ns=40, layer_ns=4, penalty_ns=7, streams=True)
IDLE = PlannedJob(
    deadline_ns=None, cost_ns=0, section_ns=30, layer_ns=6, penalty_ns=9, streams=True
)
JOBS = [URGENT, RESIDENT, LONG, IDLE]


def charge(
    jobs: Sequence[PlannedJob], preemptible: Sequence[int], scheduling: Scheduling, resume_ns: int
) -> tuple[list[int], list[int]]:
    """Costs and sections of all."""
    rows, everyone = Jobs.of(jobs), np.arange(len(jobs))
    charges = Charges(rows, np.isin(everyone, preemptible), scheduling, resume_ns)
    costs, sections = charges.of(everyone, rows)
    return costs.tolist(), sections.tolist()


@pytest.mark.parametrize(
    ("scheduling", "preemptible", "costs", "sections"),
    [
        pytest.param("non-preemptive", [], [3, 5, 40, 0], [3, 5, 40, 30], id="nobody yields"),
        pytest.param(
            "layer-preemptive", [2], [12, 14, 40, 0], [12, 14, 4, 30], id="everyone pays the ring"
        ),
        pytest.param(
            "ring-keeping", [2], [12, 7, 40, 0], [12, 7, 4, 30], id="a resident job pays the way"
        ),
        pytest.param(
            "ring-keeping", [1], [5, 5, 40, 0], [5, 2, 40, 30], id="a longer deadline pays nothing"
        ),
        pytest.param(
            "ring-keeping", [3], [3, 5, 40, 0], [3, 5, 40, 6], id="nobody owes best effort"
        ),
    ],
)
def test_charges(
    scheduling: str, preemptible: list[int], costs: list[int], sections: list[int]
) -> None:
    assert charge(JOBS, preemptible, Scheduling(scheduling), RESUME) == (costs, sections)


def random_job(rng: np.random.Generator, *, by_mean: bool) -> PlannedJob:
    cost, section, layer, penalty, flight = (int(x) for x in rng.integers(0, 6, 5))
    return PlannedJob(
        deadline_ns=None if rng.random() < 0.1 else int(rng.integers(1, 9)),
        cost_ns=cost,
        section_ns=section,
        layer_ns=layer,
        penalty_ns=penalty,
        streams=bool(rng.random() < 0.6),
        calls=int(rng.integers(1, 4)),
        flight_ns=flight,
        by_mean=by_mean and bool(rng.random() < 0.3),
    )


@pytest.mark.parametrize("by_mean", [False, True])
@pytest.mark.parametrize("scheduling", list(Scheduling))
def test_one_job_in_place_of_another_is_charged_as_in_a_set_with_it(
    scheduling: Scheduling, by_mean: bool
) -> None:
    """Where that changes nothing for the others; and where it would, it is not said to be so."""
    rng = np.random.default_rng(5)
    same = 0
    for _ in range(300):
        jobs = [random_job(rng, by_mean=by_mean) for _ in range(int(rng.integers(1, 7)))]
        preemptible = [i for i in range(len(jobs)) if rng.random() < 0.5]
        index = int(rng.integers(len(jobs)))
        other = replace(random_job(rng, by_mean=by_mean), deadline_ns=jobs[index].deadline_ns)
        changed = [other if i == index else job for i, job in enumerate(jobs)]
        mask = np.isin(np.arange(len(jobs)), preemptible)
        charges = Charges(Jobs.of(jobs), mask, scheduling, 2)
        before = charge(jobs, preemptible, scheduling, 2)
        after = charge(changed, preemptible, scheduling, 2)
        if not charges.same_for_others(np.array([index]), Jobs.of([other]))[0]:
            continue
        same += 1
        if not by_mean:
            cost, section = charges.of(np.array([index]), Jobs.of([other]))
            assert (cost[0], section[0]) == (after[0][index], after[1][index])
        for column in (0, 1):
            del before[column][index], after[column][index]
        if not other.by_mean:
            assert before == after
    assert same > 100
