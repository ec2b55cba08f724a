"""A task that trains: one section blocks, nothing else of it, and what it keeps is its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.planning.shapes import device, layout_of, task

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.memprofile import Layer, MemProfile, MemProfileSpec, ProfiledDevice
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.realtime import Criticality
from tierline_api.schema.metadata import ObjectMeta
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.from_api import QuestionError, demand_of
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import Margins, TaskDemand

MB = 10**6


def training(section_ms: float, *, step_ms: float = 5000, state_mb: int = 0) -> TaskDemand:
    """One without weights in extents, so that 1 MB is its workspace, and the rest its state."""
    return TaskDemand(
        name="finetune",
        domain="default",
        period_s=86_400,
        deadline_s=86_400,
        layout=replace(layout_of([]), extent_bytes=MB),
        compute_s=(step_ms / 1000,),
        criticality=Criticality.BEST_EFFORT,
        workspace_bytes=MB,
        first_section_s=section_ms / 1000,
        trains=True,
        state_bytes=state_mb * MB,
    )


def admitted(tasks: list[TaskDemand], megabytes: float) -> Admitted:
    answer = plan(tasks, device(megabytes, margins=Margins(1.5, 1.0), dispatch_s=0.001))
    assert isinstance(answer, Admitted), answer.sentence
    return answer


def refused(tasks: list[TaskDemand], megabytes: float) -> Infeasible:
    answer = plan(tasks, device(megabytes, margins=Margins(1.5, 1.0), dispatch_s=0.001))
    assert isinstance(answer, Infeasible)
    return answer


def test_its_longest_section_blocks_and_no_more_of_a_step() -> None:
    hard = task("hard", 100, 60, 20)  # 31 ms with margin and dispatch
    answer = admitted([hard, training(18)], 30)
    assert answer.blocker == "finetune"
    assert answer.utilisation == pytest.approx(0.31)
    assert answer.plans[1].first_s == pytest.approx(0.018 * 1.5 + 0.001)
    assert answer.plans[0].response_s == pytest.approx(0.031 + 0.028)
    assert answer.plans[1].response_s is None
    late = refused([hard, training(19)], 30)
    assert (late.kind, late.blocker) == ("deadline", "finetune")


def test_a_task_with_a_deadline_holds_as_it_does_alone_but_for_that_section() -> None:
    hard = task("hard", 100, 60, 20)
    alone, together = admitted([hard], 30), admitted([hard, training(1)], 30)
    assert alone.plans[0].resident_extents == together.plans[0].resident_extents


def test_without_a_measured_section_the_whole_step_blocks() -> None:
    hard = task("hard", 100, 60, 20)
    unknown = replace(training(1), first_section_s=None)
    assert refused([hard, unknown], 30).blocker == "finetune"
    assert admitted([hard, replace(unknown, compute_s=(0.01,))], 30).ok


def test_state_and_step_are_counted_in_addition_to_all_workspaces() -> None:
    hard = replace(task("hard", 100, 60, 20), workspace_bytes=3 * MB)
    other = replace(task("other", 100, 90, 1), workspace_bytes=2 * MB)
    tasks = [hard, other, training(1, state_mb=7)]
    answer = admitted(tasks, 40)
    assert answer.workspace_bytes == 3 * MB + 8 * MB
    assert answer.plans[2].workspace_bytes == 8 * MB


def test_a_step_that_does_not_fit_is_refused_with_its_state() -> None:
    answer = refused([task("hard", 100, 60, 20), training(1, state_mb=40)], 30)
    assert answer.reason == "FastMemoryExceeded"
    assert answer.task == "finetune"
    assert "39.2 MiB of a step (38.2 MiB of it parameters, gradients and" in answer.sentence


def test_a_deadline_is_no_part_of_it() -> None:
    with pytest.raises(ValueError, match="one that trains has no deadline"):
        replace(training(1), criticality=Criticality.HARD)


def _asked(budget: str = "64Mi") -> MemTask:
    return MemTask.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": "finetune"},
            "spec": {
                "training": {},
                "memory": {"budget": budget},
                "device": {"kind": "cpu"},
            },
        }
    )


def _profile(state_bytes: int | None = 32 << 20) -> MemProfile:
    return MemProfile(
        metadata=ObjectMeta(name="finetune"),
        spec=MemProfileSpec(
            device=ProfiledDevice(kind=DeviceKind.CPU, product="x"),
            layers=(Layer(name="a step", bytes=0, compute_time_s=0.5, pinned=True),),
            workspace_bytes=8 << 20,
            state_bytes=state_bytes,
            first_section_s=0.02,
        ),
    )


def test_manifest_and_profile_become_what_is_asked() -> None:
    demand = demand_of(_asked(), _profile(), 4 << 20)
    assert demand.trains
    assert (demand.state_bytes, demand.workspace_bytes) == (32 << 20, 8 << 20)
    assert demand.criticality is Criticality.BEST_EFFORT
    assert demand.layout.extent_count == 0


def test_a_budget_below_the_state_names_what_would_do() -> None:
    with pytest.raises(QuestionError) as refusal:
        demand_of(_asked("32Mi"), _profile(), 4 << 20)
    assert str(refusal.value) == (
        "MemTask/finetune: spec.memory.budget 32Mi is less than a step needs: 32Mi of parameters, "
        "gradients and optimizer state that stay, and 8Mi that it allocates; write at least 40Mi, "
        "or train with a smaller batch"
    )


def test_a_profile_of_jobs_is_none_of_a_task_that_trains() -> None:
    with pytest.raises(QuestionError, match="spec has training, and MemProfile/finetune is of a"):
        demand_of(_asked(), _profile(None), 4 << 20)


def test_what_is_written_reads_back() -> None:
    again = MemTask.from_api(_asked().to_api())
    assert again.spec.training == _asked().spec.training
    assert again.spec.realtime == _asked().spec.realtime
