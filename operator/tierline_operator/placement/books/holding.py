"""The plan that the pod of a seat holds, and the demand of its task by that. Pure.

A pod holds its plan from the decision that it gets this one (the write of it may be under way) to
its end. The plan is read from its claim, so every operator knows it. A demand with what is held is
planned by nothing else.

Where a pod's plan does not fit its profile (it was measured again, for the pods to come, or is
gone), the plan speaks for itself: a job takes what it took at worst when the plan was made.
"""

from __future__ import annotations

from dataclasses import replace

from tierline_api.layout import ArenaLayout
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.plan import Plan
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy, WorkspacePolicy
from tierline_operator.placement.books.rules import KindRules
from tierline_operator.planning.answer import HomeRun
from tierline_operator.planning.from_api import yielding_of
from tierline_operator.planning.held import Held
from tierline_operator.planning.request import TaskDemand
from tierline_operator.planning.wishes import misfit as wish_missed


def held_of(plan: Plan) -> Held:
    """The holding of a pod whose claim has this plan."""
    return Held(
        extent_bytes=plan.extent_bytes,
        extent_count=plan.extent_count,
        resident_extents=plan.resident_extents,
        ring_extents=plan.ring_extents,
        workspace_bytes=plan.workspace_bytes,
        homes=tuple(HomeRun(home.tier.value, home.extents) for home in plan.homes),
        job_time_s=plan.predicted_job_time_s,
        calls=plan.calls or 1,
        yielding=yielding_of(plan),
    )


def misfit(asked: TaskDemand, held: Held) -> str | None:
    """Why what a task asks cannot be had by what its pod holds, as a clause; None if it can."""
    wrong = held.misfit(asked.layout)
    if wrong is not None:
        return wrong
    if asked.workspace_bytes > held.workspace_bytes:
        return "it needs a larger workspace than the plan has"
    reserved = asked.reserved_bytes - held.workspace_bytes
    if reserved > len(held.resident_extents) * held.extent_bytes and held.streamed_extents:
        return "it reserves more fast memory than the plan has"
    if asked.policy is SwapPolicy.RESIDENT and held.streamed_extents:
        return "its weights are to stay resident, and the plan streams a part"
    if not set(held.home_of_extent) <= set(asked.tiers):
        return "the plan has weights in a tier that it does not name any more"
    return wish_missed(asked.wishes, frozenset(held.resident_extents), held.home_of_extent)


def among(asked: TaskDemand, held: Held) -> TaskDemand:
    """The demand of a pod that runs by what it holds, which fits what its task asks."""
    return replace(asked, held=held, workspace_bytes=held.workspace_bytes)


def by_its_plan(task: MemTask, spec: MemTaskSpec, held: Held, rules: KindRules) -> TaskDemand:
    """The demand of a running pod of which nothing is known but its plan and its spec."""
    compute_s = (held.job_time_s - rules.dispatch_s - rules.gate_s) / rules.margins.compute
    mean_s: tuple[float, ...] | None = None
    worst_s = max(0.0, compute_s)
    if spec.realtime.criticality is Criticality.SOFT and held.yielding is not None:
        # Its plan may be by its mean, and says nothing of its worst then.
        mean_s, worst_s = (worst_s,), max(worst_s, spec.realtime.deadline_s)
    whole = spec.swap.policy is SwapPolicy.SWAP and not held.extent_count
    preserves = whole or spec.swap.workspace == WorkspacePolicy.PRESERVE
    return TaskDemand(
        name=task.name,
        domain=task.domain,
        period_s=spec.realtime.period_s,
        deadline_s=spec.realtime.deadline_s,
        layout=_without_layers(held),
        compute_s=(worst_s,),
        mean_compute_s=mean_s,
        workspace_bytes=held.workspace_bytes,
        tiers=tuple(dict.fromkeys(held.home_of_extent)),
        criticality=spec.realtime.criticality,
        in_extents=whole,
        preserved_bytes=held.workspace_bytes if preserves else 0,
        calls=(held.calls,),
        held=held,
    )


def _without_layers(held: Held) -> ArenaLayout:
    """So many extents, of which is not known what reads them: its job takes the time stated."""
    count, size = held.extent_count, held.extent_bytes
    return ArenaLayout(
        extent_bytes=size,
        extent_sizes=(size,) * count,
        arena_first_extent=(0,),
        pinned_extents=frozenset(),
        first_extent=(),
        last_extent=(),
        last_layer=(-1,) * count,
        layer_arena=(),
        layer_offset=(),
        arena_bytes=(count * size,),
        arena_pinned_bytes=(0,),
    )
