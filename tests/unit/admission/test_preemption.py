"""Who pays for a preemption, and what still blocks."""

from __future__ import annotations

import pytest

from tierline_operator.admission.preemption import PlannedJob, Scheduling, charge

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
