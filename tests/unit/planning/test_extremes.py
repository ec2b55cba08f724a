"""Whatever a profile may say, a set has an answer: times are a tenant's, and may be absurd."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.planning.shapes import device, task

from tierline_api.objects.memprofile import MAX_CALLS
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import TaskDemand

DAY_S = 86_400.0
LONGEST_S = 3_600_000.0
CPU = device(100, dispatch_s=0.005)
YIELDING = replace(CPU, supports=frozenset(Scheduling))
URGENT = task("urgent", 400, 100, 10, megabytes=1, layers=1)
TIMES = st.sampled_from([0.0, 1e-6, 0.01, 1.0, 3600.0, DAY_S])


@st.composite
def tasks(draw: st.DrawFn, name: str) -> TaskDemand:
    period_s = draw(st.sampled_from([1e-3, 1.0, DAY_S, LONGEST_S]))
    deadline_s = period_s * draw(st.sampled_from([1.0, 0.3]))
    layers = draw(st.sampled_from([1, 4, 64]))
    each_s = draw(TIMES)
    made = task(
        name, period_s * 1e3, deadline_s * 1e3, each_s * layers * 1e3, megabytes=4, layers=layers
    )
    return replace(
        made,
        calls=(draw(st.sampled_from([1, 7, MAX_CALLS])),),
        between_s=draw(TIMES),
        jitter_s=draw(TIMES),
        first_section_s=draw(st.none() | TIMES),
        first_extra_s=draw(TIMES),
    )


@settings(deadline=None, max_examples=120)
@given(one=tasks("one"), two=tasks("two"), yields=st.booleans())
def test_no_times_are_too_long_for_an_answer(
    one: TaskDemand, two: TaskDemand, *, yields: bool
) -> None:
    where = YIELDING if yields else CPU
    answer = plan([URGENT, one, two], where)
    if isinstance(answer, Admitted):
        for demand in (one, two):
            needed_s = sum(demand.compute_s) * demand.release_calls + demand.between_s
            assert needed_s + demand.jitter_s <= demand.deadline_s
    proven = settle([URGENT, one], where)
    if isinstance(proven, ProvenSet) and isinstance(admit(proven, two), ProvenSet):
        assert isinstance(answer, Admitted)
    assert isinstance(proven, ProvenSet | Infeasible)


PERIODS_S = (1e-6, 1e-4, 0.003, 1.0, 57_600.0, LONGEST_S)
FEW_MS = (0.0, 1e-6, 0.001, 1.0)
MEMORY_BYTES = 400 << 20
"""Of the operator's 1 GiB."""


@pytest.mark.timeout(120)
@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(PERIODS_S), st.sampled_from([1.0, 0.5, 0.01]), st.sampled_from(FEW_MS)
        ),
        min_size=2,
        max_size=40,
    ),
    dispatch_s=st.sampled_from([0.0, 0.005]),
)
@example(rows=[(57_600.0, 1.0, 1.0)] + [(1e-6, 1.0, 1.0)] * 30, dispatch_s=0.005)
@example(rows=[(57_600.0, 1.0, 1.0)] + [(1e-6, 1.0, 0.0)] * 30, dispatch_s=0.0)
def test_no_periods_lie_too_far_apart_for_an_answer(
    rows: list[tuple[float, float, float]], dispatch_s: float
) -> None:
    """A tenant chooses them, and the operator that has no memory for them is everybody's."""
    where = replace(CPU, dispatch_s=dispatch_s)
    demands = [
        task(f"t{number}", period_s * 1e3, period_s * share * 1e3, work_ms, megabytes=1, layers=1)
        for number, (period_s, share, work_ms) in enumerate(rows)
    ]
    tracemalloc.start()
    try:
        proven = settle(demands[:1], where)
        for one in demands[1:]:
            if not isinstance(proven, ProvenSet):
                break
            proven = admit(proven, one)
        if isinstance(proven, ProvenSet):
            proven.responses_s()
        plan(demands, where)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
