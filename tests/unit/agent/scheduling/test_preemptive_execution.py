"""The run time does what admission and the simulator assume: same jobs, same moments.

All times are whole ticks and the link moves whole bytes a tick, so both sides calculate without
rounding: what falls on one moment for one of them does so for the other, and moments are equal or
they are wrong. Tasks of round numbers meet at one moment all the time, and Hypothesis likes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.spans import largest_span
from tests.unit.agent.virtual_device import VirtualNode
from tests.unit.planning.shapes import layout_of

from tierline_agent.policy import preemption
from tierline_api.layout import ArenaLayout
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.simulation.device import Machine, simulate
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

TICK_S = 1 / 512  # a whole number of nanoseconds
LINK = LinkRate(128.0)
UNTIL_S = 40.0
SAME = {
    Scheduling.LAYER_PREEMPTIVE: preemption.Scheduling.LAYER_PREEMPTIVE,
    Scheduling.RING_KEEPING: preemption.Scheduling.RING_KEEPING,
}
TaskSet = tuple[list[TaskModel], list[float]]
"""Tasks, and their first releases."""


def seconds(least_s: float, most_s: float) -> st.SearchStrategy[float]:
    """Times of whole ticks."""
    ticks = st.integers(int(least_s / TICK_S), int(most_s / TICK_S))
    return ticks.map(lambda count: count * TICK_S)


def model(
    name: str,
    layout: ArenaLayout,
    compute_s: Sequence[float],
    resident: frozenset[int],
    *,
    period_s: float = 64.0,
    deadline_s: float | None = None,
    ring_extents: int = 1,
    preemptible: bool = True,
) -> TaskModel:
    return TaskModel(
        name,
        period_s,
        deadline_s,
        layout,
        compute_s,
        resident,
        ring_extents,
        [0] * layout.extent_count,
        "default",
        preemptible,
    )


@st.composite
def task_sets(draw: st.DrawFn) -> TaskSet:
    """Tasks that load the device well."""
    models, first_s = [], []
    for number in range(draw(st.integers(2, 4))):
        sizes = draw(st.lists(st.integers(20, 250), min_size=2, max_size=6))
        layout = layout_of(sizes)
        everything = frozenset(range(layout.extent_count))
        held = draw(
            st.one_of(st.just(everything), st.frozensets(st.sampled_from(sorted(everything))))
        )
        period_s = draw(seconds(2.0, 30.0))
        models.append(
            model(
                f"task-{number}",
                layout,
                draw(st.lists(seconds(0.05, 1.5), min_size=len(sizes), max_size=len(sizes))),
                held,
                period_s=period_s,
                deadline_s=draw(st.one_of(st.none(), seconds(0.3 * period_s, period_s))),
                ring_extents=largest_span(layout) + draw(st.integers(0, 2)),
                preemptible=draw(st.booleans()) or number == 0,
            )
        )
        first_s.append(draw(seconds(0.0, 5.0)))
    return models, first_s


def preempted_before_its_stream_began() -> TaskSet:
    """A fully resident job preempts one that still waits for the link to let go of the ring."""
    layout = layout_of([100, 100])
    displaced = model("displaced", layout, [1.0, 1.0], frozenset())
    streams = model("streams", layout, [1.0, 1.0], frozenset(), deadline_s=32.0)
    urgent = model("urgent", layout, [1.0, 1.0], frozenset({0, 1}), deadline_s=4.0)
    return [displaced, streams, urgent], [0.0, 0.25, 0.5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("virtual")


@pytest.mark.parametrize("scheduling", list(SAME))
def test_every_job_ends_when_the_simulator_says(scheduling: Scheduling, folder: Path) -> None:
    seen_preemptions = 0

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(task_sets())
    @example(preempted_before_its_stream_began())
    def compare(tasks: TaskSet) -> None:
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
            assert node.responses_s == seen.responses_s
            assert node.preemptions == seen.preemptions
            assert node.rings_lost == seen.rings_lost
            seen_preemptions += node.preemptions
        finally:
            node.close()

    compare()
    # How many do depends on which modules are loaded: Hypothesis takes constants there.
    assert seen_preemptions > 5
