"""Between the API's objects and the planner's values: questions in, plans out.

Translation only: what a MemTask, a MemProfile and a MemNode say becomes a TaskDemand and a
DeviceCapacity, and a TaskPlan becomes the API's Plan. Nothing is decided here but what makes a
question meaningless (`QuestionError`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil
from typing import Any

from tierline_api.devices import preemption
from tierline_api.devices.fast_memory import Contexts
from tierline_api.devices.overheads import COPYING_AT_ONCE, YIELDING_WHILE_WAITING
from tierline_api.devices.preemption import Preemption
from tierline_api.layout import ArenaLayout, LayerShape, LayoutError, fold_compute, lay_out
from tierline_api.objects.memnode import Device, Health, LinkName, MemNode
from tierline_api.objects.memprofile import Layer, MemProfile
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.plan import MAX_EXTENTS, Home, Plan, Tier
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import OverBudget, SwapPolicy, WorkspacePolicy
from tierline_api.schema.quantities import format_duration, format_quantity, size_for_people
from tierline_operator.admission.demand import NS
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.held import Yielding
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.request import (
    Backup,
    DeviceCapacity,
    Margins,
    TaskDemand,
    TierCapacity,
)
from tierline_operator.planning.wishes import Wish, WishError, wishes_of

_NAMES = {
    Scheduling.LAYER_PREEMPTIVE: preemption.Scheduling.LAYER_PREEMPTIVE,
    Scheduling.RING_KEEPING: preemption.Scheduling.RING_KEEPING,
}
_IN_FLIGHT = 2
"""Extents that an agent has on a link at once; link rates are measured so."""


class QuestionError(ValueError):
    """The objects contradict each other; the sentence names the field and the fix."""


def demand_of(task: MemTask, profile: MemProfile, extent_bytes: int) -> TaskDemand:
    """The demand of `task` on a device with extents of `extent_bytes`, measured as in `profile`.

    An execution time that the task states replaces the measured one: layers keep their shares.

    Raises:
        QuestionError: weights and workspace exceed the task's own budget, weights are in more
            extents than a plan can name, or an object cannot be had of its layers.
    """
    spec, layers = task.spec, profile.spec.layers
    workspace_bytes = max(profile.spec.workspace_bytes, spec.memory.workspace_bytes or 0)
    trains, state_bytes = spec.training is not None, profile.spec.state_bytes or 0
    if trains is not (profile.spec.state_bytes is not None):
        says, has = ("training", "a job") if trains else ("no training", "a step that trains")
        raise QuestionError(
            f"MemTask/{task.name}: spec has {says}, and MemProfile/{profile.name} is of {has}; "
            "measure it again, or change the spec"
        )
    if trains and state_bytes + workspace_bytes > spec.memory.budget_bytes:
        raise QuestionError(
            f"MemTask/{task.name}: spec.memory.budget {format_quantity(spec.memory.budget_bytes)} "
            f"is less than a step needs: {size_for_people(state_bytes)} of parameters, gradients "
            f"and optimizer state that stay, and {size_for_people(workspace_bytes)} that it "
            f"allocates; write at least {size_for_people(state_bytes + workspace_bytes)}, or train "
            "with a smaller batch"
        )
    needed = profile.spec.weight_bytes + workspace_bytes
    spills = spec.swap.on_budget_exceeded == OverBudget.SPILL
    if needed > spec.memory.budget_bytes and not spills:
        raise QuestionError(
            f"MemTask/{task.name}: spec.memory.budget {format_quantity(spec.memory.budget_bytes)} "
            "is less than its measured weights and workspace; "
            f"write at least {size_for_people(needed)}"
        )
    shapes = [LayerShape(layer.bytes, layer.pinned, layer.arena) for layer in layers]
    layout = _laid_out(profile, shapes, extent_bytes)
    # A program without layers has its weights in its workspace, and is swapped whole.
    whole = spec.swap.policy is SwapPolicy.SWAP and profile.spec.weight_bytes == 0
    wishes = () if whole else _wishes(task, profile, layout, workspace_bytes)
    # What is reserved beyond all weights that may be resident is there for what is not weights.
    resident = layout.extent_count - len({e for wish in wishes for e in wish.streamed})
    beyond = spec.memory.reserved_bytes - resident * extent_bytes
    workspace_bytes = max(workspace_bytes, beyond)
    preserves = whole or spec.swap.workspace == WorkspacePolicy.PRESERVE
    scale = 1.0
    if spec.realtime.execution_time_s is not None:
        scale = _stated_over_measured(task, profile, spec.realtime.execution_time_s)
    again = _passes_without_arena(profile, shapes)
    times = [layer.compute_time_s * scale * again.get(layer.arena, 1) for layer in layers]
    return TaskDemand(
        name=task.name,
        domain=task.domain,
        period_s=spec.realtime.period_s,
        deadline_s=spec.realtime.deadline_s,
        implicit_deadline="deadline_s" not in spec.realtime.model_fields_set,
        layout=layout,
        compute_s=fold_compute(shapes, times),
        mean_compute_s=_mean_compute_s(spec.realtime.criticality, layers, shapes, scale),
        longest_s=_longest_s(layers, shapes, scale, again),
        workspace_bytes=workspace_bytes,
        workspace_known=profile.spec.workspace_known or spec.memory.workspace_bytes is not None,
        tiers=tuple(tier.value for tier in spec.swap.tiers),
        policy=spec.swap.policy,
        criticality=spec.realtime.criticality,
        reserved_bytes=spec.memory.reserved_bytes,
        in_extents=whole,
        preserved_bytes=workspace_bytes if preserves else 0,
        weights_digest=profile.spec.digest or "",
        calls=profile.spec.calls,
        between_s=profile.spec.between_s,
        jitter_s=profile.spec.jitter_s,
        first_section_s=profile.spec.first_section_s,
        first_extra_s=profile.spec.first_extra_s,
        trains=trains,
        state_bytes=state_bytes,
        wishes=wishes,
    )


def _wishes(
    task: MemTask, profile: MemProfile, layout: ArenaLayout, workspace_bytes: int
) -> tuple[Wish, ...]:
    """The wishes of its objects for layers, if all that they ask for is of its own budget."""
    where, objects = f"MemTask/{task.name}: spec.swap.objects", task.spec.swap.objects
    if task.spec.swap.policy is SwapPolicy.SWAP and objects:
        raise QuestionError(
            f"{where} are allocations of a program without layers, and MemProfile/{profile.name} "
            "has layers with weights; leave them out, or write another policy and names of layers"
        )
    try:
        wishes = wishes_of(objects, profile.spec.layers, layout)
    except WishError as error:
        raise QuestionError(f"{where}: {error}") from error
    kept_bytes = sum(layout.extent_sizes[e] for e in {e for wish in wishes for e in wish.kept})
    budget_bytes = task.spec.memory.budget_bytes
    if kept_bytes + workspace_bytes > budget_bytes:
        names = ", ".join(repr(wish.name) for wish in wishes if wish.kept)
        raise QuestionError(
            f"{where}: {names} would keep {size_for_people(kept_bytes)} resident, which with a "
            f"workspace of {size_for_people(workspace_bytes)} is more than the budget "
            f"{format_quantity(budget_bytes)}; let fewer layers be Resident, or raise the budget"
        )
    return wishes


def _stated_over_measured(task: MemTask, profile: MemProfile, stated_s: float) -> float:
    """By how much longer layers are where the task states its time."""
    if profile.spec.compute_s <= 0:
        raise QuestionError(
            f"MemTask/{task.name}: spec.realtime.executionTime {format_duration(stated_s)} is "
            "shared among the layers by their computeTime, and all of MemProfile/"
            f"{profile.name} have 0; measure it again"
        )
    return stated_s / profile.spec.compute_s


def _passes_without_arena(profile: MemProfile, shapes: Sequence[LayerShape]) -> dict[int, int]:
    """How often a release runs what has no layer that could stream, so is part of another one."""
    streamed = {shape.arena for shape in shapes if not shape.pinned}
    counted = enumerate(profile.spec.calls)
    return {arena: max(1, calls) for arena, calls in counted if arena not in streamed}


def measured_elsewhere(spec: MemTaskSpec, profile: MemProfile, device: Device) -> str | None:
    """Why a profile says nothing of a device, as a sentence; None if it does.

    Times of another product are none, unless the task states its own.
    """
    measured = profile.spec.device
    states = spec.realtime.execution_time_s is not None
    if measured.kind == device.kind and (measured.product == device.product or states):
        return None
    if measured.kind != device.kind:
        return (
            f"MemProfile/{profile.name} was measured on a device of kind {measured.kind} and this "
            f"one is of kind {device.kind}; measure it there"
        )
    return (
        f"MemProfile/{profile.name} was measured on {measured.product} and this device is "
        f"{device.product}; measure it there, or state realtime.executionTime"
    )


def stated_below_mean(spec: MemTaskSpec, profile: MemProfile, device: Device) -> str | None:
    """The fault of a worst time that a task states, where its mean was measured; or None."""
    if (profile.spec.device.kind, profile.spec.device.product) != (device.kind, device.product):
        return None
    stated_s = spec.realtime.execution_time_s
    means = [layer.mean_compute_time_s for layer in profile.spec.layers]
    mean_s = sum(mean or 0.0 for mean in means)
    if stated_s is None or round(stated_s * NS) >= round(mean_s * NS):
        return None
    return (
        f"spec.realtime.executionTime {format_duration(stated_s)} is to be the worst of a job, and "
        f"its mean in MemProfile/{profile.name}, measured on this product, is "
        f"{format_duration(mean_s)}; write at least that, or leave it out"
    )


def _laid_out(profile: MemProfile, shapes: Sequence[LayerShape], extent_bytes: int) -> ArenaLayout:
    """Its extents, if they are no more than a plan can name."""
    if profile.spec.weight_bytes // extent_bytes <= MAX_EXTENTS:
        try:
            layout = lay_out(shapes, extent_bytes)
        except LayoutError as error:
            raise QuestionError(f"MemProfile/{profile.name}: spec.layers: {error}") from error
        if layout.extent_count <= MAX_EXTENTS:
            return layout
    raise QuestionError(
        f"MemProfile/{profile.name}: spec.layers have {format_quantity(profile.spec.weight_bytes)} "
        f"of weights, and a plan has at most {MAX_EXTENTS} extents of "
        f"{format_quantity(extent_bytes)}; measure the profile again, or have larger extents"
    )


def _mean_compute_s(
    criticality: Criticality, layers: Sequence[Layer], shapes: Sequence[LayerShape], scale: float
) -> Sequence[float] | None:
    """The mean by which a Soft task is admitted; the worst of a layer without one, or below it."""
    means = [layer.mean_compute_time_s for layer in layers]
    if criticality is not Criticality.SOFT or all(mean is None for mean in means):
        return None
    worst = [layer.compute_time_s for layer in layers]
    typical = [w if m is None else min(m, w) for m, w in zip(means, worst, strict=True)]
    return fold_compute(shapes, [seconds * scale for seconds in typical])


def _longest_s(
    layers: Sequence[Layer], shapes: Sequence[LayerShape], scale: float, again: dict[int, int]
) -> Sequence[float]:
    """The longest time of each layer in any job that was measured; a job's own bounds it."""
    longest = [
        max(one.compute_time_s, one.longest_compute_time_s or 0.0) * again.get(one.arena, 1)
        for one in layers
    ]
    return fold_compute(shapes, [seconds * scale for seconds in longest])


def capacity_of(
    node: MemNode,
    device: Device,
    margins: Margins,
    *,
    dispatch_s: float,
    gate_s: float,
    supports: Collection[Scheduling] = (Scheduling.NON_PREEMPTIVE,),
) -> DeviceCapacity:
    """The capacity of `device` of `node`: its fast memory, and each tier that has a measured link.

    A tier that has failed is none.

    Where other devices use the link too, whatever they are granted, it offers the device's turns.

    `dispatch_s` and `gate_s` are the run time's own costs, seconds a job and seconds a layer;
    `supports` is what its agent and its programs do.
    """
    tiers, unmeasured = {}, set()
    in_turn = device.kind not in COPYING_AT_ONCE
    for tier in node.status.tiers:
        if tier.health is Health.FAILED:
            continue
        link = node.read_link(Tier(tier.name), device.name)
        if link is None:
            unmeasured.add(tier.name.value)
        else:
            tiers[tier.name.value] = TierCapacity(
                tier.capacity_bytes - tier.used_bytes,
                LinkRate(
                    *(float(link.bandwidth), link.overhead_s, _IN_FLIGHT),
                    devices=link.devices,
                    turn_bytes=device.extent_bytes,
                    staged=in_turn and tier.name is Tier.NVME,  # all others lie in pinned memory
                ),
            )
    return DeviceCapacity(
        device.fast_bytes - device.used_bytes,
        tiers,
        margins,
        unmeasured=frozenset(unmeasured),
        dispatch_s=dispatch_s,
        gate_s=gate_s,
        supports=frozenset(supports),
        yields_while_waiting=device.kind in YIELDING_WHILE_WAITING,
        in_turn=in_turn,
        backup=_backup(node, device),
        workspaces_overlay=device.overlays,
        contexts=_contexts(device),
    )


def _contexts(device: Device) -> Contexts | None:
    if not device.context_bytes or device.memory_bytes is None:
        return None
    return Contexts(device.context_bytes, max(0, device.memory_bytes - device.fast_bytes))


def _backup(node: MemNode, device: Device) -> Backup | None:
    """The links that preserved workspaces go over: their copies lie in pinned host memory."""
    rates = {
        link.name: LinkRate(float(link.bandwidth), link.overhead_s, _IN_FLIGHT)
        for link in node.status.links
        if link.device == device.name
    }
    save, restore = rates.get(LinkName.D2H), rates.get(LinkName.H2D)
    return None if save is None or restore is None else Backup(save, restore)


def plan_of(plan: TaskPlan, scheduling: Scheduling) -> Plan:
    """The API's face of what a task is granted, planned for `scheduling`, as it reads back."""
    return Plan(
        extent_bytes=plan.extent_bytes,
        extent_count=plan.extent_count,
        resident_extents=plan.resident_extents,
        ring_extents=plan.ring_extents,
        workspace_bytes=plan.workspace_bytes,
        homes=_homes(plan),
        predicted_job_time_s=_as_written(plan.job_time_s),
        calls=plan.calls,
        predicted_call_time_s=_as_written(plan.call_s) if plan.calls > 1 else None,
        between_s=_as_written(plan.between_s),
        jitter_s=_as_written(plan.jitter_s),
        first_s=_as_written(plan.first_s),
        predicted_response_time_s=None if plan.response_s is None else _as_written(plan.response_s),
        preemption=_preemption(plan, scheduling) if plan.preemptible else None,
    )


def yielding_of(plan: Plan) -> Yielding | None:
    """How jobs of a pod with this plan give the device away; None if they do not."""
    granted = plan.preemption
    if granted is None:
        return None
    (way,) = (way for way, name in _NAMES.items() if name is granted.scheduling)
    return Yielding(way, granted.parked_bytes, granted.layer_s, granted.penalty_s)


def supports_of(device: Device) -> frozenset[Scheduling]:
    """The abilities of a device, by what its agent says of it."""
    more = {way for way, name in _NAMES.items() if name in device.preemption}
    return frozenset({Scheduling.NON_PREEMPTIVE, *more})


def _preemption(plan: TaskPlan, scheduling: Scheduling) -> Preemption:
    return Preemption(
        scheduling=_NAMES[scheduling],
        layer_s=_as_written(plan.layer_s),
        penalty_s=_as_written(plan.penalty_s),
        parked_bytes=plan.parked_bytes,
    )


def _as_written(duration_s: float) -> float:
    """A duration as the API writes it: in whole nanoseconds."""
    return round(duration_s * NS) / NS


def preemption_of(plan: TaskPlan, scheduling: Scheduling) -> dict[str, Any] | None:
    """The `preemption` of a registration with the agent, of a task planned for `scheduling`.

    None for a task whose jobs keep the device to their end. Times in nanoseconds, rounded up.
    """
    if not plan.preemptible:
        return None
    return {
        "scheduling": _NAMES[scheduling].value,
        "layer_ns": max(1, ceil(plan.layer_s * NS)),
        "penalty_ns": ceil(plan.penalty_s * NS),
        "parked_bytes": plan.parked_bytes,
    }


def _homes(plan: TaskPlan) -> tuple[Home, ...]:
    return tuple(Home(tier=Tier(run.tier), extents=run.extents) for run in plan.homes)
