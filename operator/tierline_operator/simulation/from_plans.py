"""From what the planner was asked and answered to what the simulator plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tierline_api.objects.realtime import Criticality
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.writeback import moves_s
from tierline_operator.simulation.device import Machine
from tierline_operator.simulation.job import TaskModel

SECTIONS: Final = 8
"""How often a program that learns has the device before it has its arena."""
AGAIN_S: Final = 0.25
"""How soon after its begin a program starts again."""


def models_of(
    demands: Sequence[TaskDemand], plans: Sequence[TaskPlan], device: DeviceCapacity
) -> list[TaskModel]:
    """Each task with its plan and its planned times, margins and gates included."""
    return [_model(demand, plan, device) for demand, plan in zip(demands, plans, strict=True)]


def starting_of(
    demands: Sequence[TaskDemand], plans: Sequence[TaskPlan], device: DeviceCapacity
) -> list[TaskModel]:
    """First jobs of programs that start again all the time, for each task that is charged them.

    Told as they come, not as they are charged: a program learns, a module at a time, and then has
    its arena, and streams as its task's plan says. Where its task's jobs do not yield, that job
    takes longer than its worst.
    """
    models = []
    for demand, plan in zip(demands, plans, strict=True):
        if demand.first_section_s is None:
            continue
        margin, model = device.margins.compute, _model(demand, plan, device)
        extra_s = 0.0 if plan.preemptible else demand.first_extra_s * margin
        compute_s = [*model.compute_s]
        if compute_s:
            compute_s[-1] += extra_s
        models.append(
            replace(
                model,
                name=f"{demand.name} starts",
                period_s=AGAIN_S,
                deadline_s=None,
                compute_s=compute_s,
                budget_s=None,
                save_s=0.0,
                starts=True,
                sections_s=(demand.first_section_s * margin,) * SECTIONS,
            )
        )
    return models


def machine_of(
    plans: Sequence[TaskPlan], device: DeviceCapacity, scheduling: Scheduling
) -> Machine:
    """The device with its links as slow as plans take them to be."""
    return Machine(
        links=[tier.link.slowed(device.margins.bandwidth) for tier in device.tiers.values()],
        extent_bytes=plans[0].extent_bytes if plans else 1,
        scheduling=scheduling,
        dispatch_s=device.dispatch_s,
        blocked_extents=device.blocked_extents,
        in_turn=device.in_turn,
        yields_while_waiting=device.yields_while_waiting,
    )


def _model(demand: TaskDemand, plan: TaskPlan, device: DeviceCapacity) -> TaskModel:
    names = list(device.tiers)
    homes = [run.tier for run in plan.homes for _ in range(run.extents)]
    due = demand.criticality is not Criticality.BEST_EFFORT
    save_s = restore_s = 0.0
    if device.backup is not None:
        save_s, restore_s = moves_s(demand, device.backup, device.margins.bandwidth)
    return TaskModel(
        name=demand.name,
        period_s=demand.period_s,
        deadline_s=demand.deadline_s if due else None,
        layout=demand.layout,
        compute_s=[
            seconds * device.margins.compute + device.gate_s for seconds in demand.compute_s
        ],
        resident=frozenset(plan.resident_extents),
        ring_extents=plan.ring_extents,
        link_of_extent=[names.index(name) for name in homes],
        domain=demand.domain,
        preemptible=plan.preemptible,
        budget_s=plan.call_s if plan.preemptible else None,
        penalty_s=plan.penalty_s,
        save_s=save_s,
        restore_s=restore_s,
        calls=demand.calls,
        between_s=demand.between_s * device.margins.compute,
    )
