"""What an admitted choice grants: rings, plans and bounds of response times, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tierline_operator.admission.demand import NS
from tierline_operator.admission.response import worst_responses
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.homes.placing import runs
from tierline_operator.planning.refusals.reasons import sporadic_tasks
from tierline_operator.planning.search.options import Option, Task
from tierline_operator.planning.search.residents import Outcome, Search


def picked(search: Search, chosen: Sequence[int]) -> list[Option]:
    """The option of each task that has this number among its own."""
    return [options[at] for options, at in zip(search.options, chosen, strict=True)]


def rings_in_use(search: Search, chosen: Sequence[int], rings: dict[str, int]) -> dict[str, int]:
    """Rings no larger than what streams through them, extents by domain."""
    needed = dict.fromkeys(rings, 0)
    for task, option in zip(search.tasks, picked(search, chosen), strict=True):
        domain = task.demand.domain
        streamed = min(_slots(task, option, rings[domain]), option.point.streamed_extents)
        needed[domain] = max(needed[domain], streamed)
    return needed


def plans_of(search: Search, outcome: Outcome, rings: dict[str, int]) -> tuple[TaskPlan, ...]:
    """The grant of each task, with its bound of the response time."""
    responses = _responses(search, outcome)
    contained = search.contained(outcome.chosen, outcome.preemptible)
    lost_ns = search.going_on_ns(outcome.chosen, outcome.preemptible)
    plans = []
    for index, (task, option, response_s) in enumerate(
        zip(search.tasks, picked(search, outcome.chosen), responses, strict=True)
    ):
        granted = task_plan(task, option, rings[task.demand.domain], response_s)
        first_ns = task.first_ns(option, preemptible=index in outcome.preemptible)
        granted = replace(granted, first_s=first_ns / NS)
        if index in outcome.preemptible:
            granted = replace(
                granted,
                preemptible=True,
                parked_bytes=task.parked_extents * task.demand.layout.extent_bytes,
                penalty_s=lost_ns[index] / NS,
            )
        budget_ns = task.budget_ns(option) if index in contained else None
        if budget_ns is not None:
            granted = replace(granted, job_time_s=budget_ns / NS, call_s=budget_ns / NS)
        plans.append(granted)
    return tuple(plans)


def _responses(search: Search, outcome: Outcome) -> list[float | None]:
    """Bounds of response times, seconds; None for tasks that have none or count by their mean.

    What lost its rank is to the others like a task without a deadline.
    """
    rows = sporadic_tasks(search, outcome)
    contained = search.contained(outcome.chosen, outcome.preemptible)
    lower = [replace(rows[index], deadline_s=None) for index in contained]
    first_ns, index = search.first(outcome.chosen, outcome.preemptible)
    if first_ns:
        starting = replace(rows[index], deadline_s=None, section_s=first_ns / NS)
        lower.append(starting)
    bounds = worst_responses([*rows, *lower])[: len(rows)]
    for index in search.by_mean(outcome.chosen, outcome.preemptible):
        bounds[index] = None
    later = (task.jitter_s for task in search.tasks)
    return [None if s is None else s + j for s, j in zip(bounds, later, strict=True)]


def _slots(task: Task, option: Option, ring: int) -> int:
    """Slots that a task may use of its domain's ring."""
    return ring if task.held is None else option.ring_extents


def task_plan(task: Task, option: Option, ring: int, response_s: float | None) -> TaskPlan:
    """The grant of `task` with that choice and a ring of `ring` extents in its domain."""
    demand, held = task.demand, option.point.resident
    sizes = demand.layout.extent_sizes
    return TaskPlan(
        name=demand.name,
        extent_bytes=demand.layout.extent_bytes,
        extent_count=demand.layout.extent_count,
        resident_extents=tuple(sorted(held)),
        ring_extents=min(_slots(task, option, ring), option.point.streamed_extents),
        workspace_bytes=demand.working_bytes,
        homes=runs(task.homes),
        job_time_s=option.job_time_s + task.calls * task.later_ns(option) / NS,
        calls=task.calls,
        call_s=(option.section_ns + task.later_ns(option)) / NS
        if task.calls > 1
        else option.job_time_s + task.later_ns(option) / NS,
        between_s=task.between_s,
        jitter_s=task.jitter_s,
        compute_s=task.compute_s,
        streamed_bytes=sum(size for extent, size in enumerate(sizes) if extent not in held),
        response_s=response_s,
        layer_s=task.yields_within_ns(option) / NS,
        homes_by=task.homes_by,
    )
