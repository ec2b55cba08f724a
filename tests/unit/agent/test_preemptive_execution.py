"""The run time does what admission and the simulator assume: same jobs, same moments."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import layout_of

from tierline_agent.policy import preemption
from tierline_cli.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.pipeline import LinkRate
from tierline_operator.simulation.device import Machine, simulate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

LINK = LinkRate(100.0)
UNTIL_S = 40.0
SAME = {
    Scheduling.LAYER_PREEMPTIVE: preemption.Scheduling.LAYER_PREEMPTIVE,
    Scheduling.RING_KEEPING: preemption.Scheduling.RING_KEEPING,
}


@st.composite
def task_sets(draw: st.DrawFn) -> tuple[list[TaskModel], list[float]]:
    """Tasks that load the device well, and their first releases."""
    models, first_s = [], []
    for number in range(draw(st.integers(2, 4))):
        sizes = draw(st.lists(st.integers(20, 250), min_size=2, max_size=6))
        layout = layout_of(sizes)
        everything = frozenset(range(layout.extent_count))
        held = draw(
            st.one_of(st.just(everything), st.frozensets(st.sampled_from(sorted(everything))))
        )
        compute_s = draw(st.lists(st.floats(0.05, 1.5), min_size=len(sizes), max_size=len(sizes)))
        period_s = draw(st.floats(2.0, 30.0))
        share = draw(st.one_of(st.none(), st.floats(0.3, 1.0)))
        models.append(
            TaskModel(
                f"task-{number}",
                period_s,
                None if share is None else share * period_s,
                layout,
                compute_s,
                held,
                layout.largest_span() + draw(st.integers(0, 2)),
                [0] * layout.extent_count,
                "default",
                draw(st.booleans()) or number == 0,
            )
        )
        first_s.append(draw(st.floats(0.0, 5.0)))
    return models, first_s


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("virtual")


@pytest.mark.parametrize("scheduling", list(SAME))
def test_every_job_ends_when_the_simulator_says(scheduling: Scheduling, folder: Path) -> None:
    seen_preemptions = 0

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(task_sets())
    def compare(tasks: tuple[list[TaskModel], list[float]]) -> None:
        nonlocal seen_preemptions
        models, first_s = tasks
        periods = [model.period_s for model in models]
        machine = Machine([LINK], 100, scheduling, 0.0, 0)
        seen = simulate(
            models, machine, Arrivals(periods, Pattern(first_s, UNTIL_S)), AgentPolicy()
        )
        arrivals = Arrivals(periods, Pattern(first_s, UNTIL_S))
        node = VirtualNode(folder, models, arrivals, [LINK], SAME[scheduling], goes_ahead=False)
        try:
            node.run()
            responses = node.responses_s
            assert [sorted(times) for times in responses] == [
                pytest.approx(sorted(times)) for times in seen.responses_s
            ]
            assert node.preemptions == seen.preemptions
            assert node.rings_lost == seen.rings_lost
            seen_preemptions += node.preemptions
        finally:
            node.close()

    compare()
    # How many do depends on which modules are loaded: Hypothesis takes constants there.
    assert seen_preemptions > 5
