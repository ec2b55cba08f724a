"""From what the planner was asked and answered to what the simulator plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tierline_api.realtime import Criticality
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.writeback import moves_s
from tierline_operator.simulation.device import Machine
from tierline_operator.simulation.job import TaskModel


def models_of(
    demands: Sequence[TaskDemand], plans: Sequence[TaskPlan], device: DeviceCapacity
) -> list[TaskModel]:
    """Each task with its plan and its planned times, margins and gates included."""
    return [_model(demand, plan, device) for demand, plan in zip(demands, plans, strict=True)]


def machine_of(
    plans: Sequence[TaskPlan], device: DeviceCapacity, scheduling: Scheduling
) -> Machine:
    """The device with its links as slow as plans take them to be."""
    slower = device.margins.bandwidth
    measured = [tier.link for tier in device.tiers.values()]
    return Machine(
        links=[
            replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / slower)
            for link in measured
        ],
        extent_bytes=plans[0].extent_bytes if plans else 1,
        scheduling=scheduling,
        dispatch_s=device.dispatch_s,
        blocked_extents=device.blocked_extents,
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
        budget_s=plan.job_time_s if plan.preemptible and demand.mean_compute_s else None,
        penalty_s=plan.penalty_s,
        save_s=save_s,
        restore_s=restore_s,
    )
