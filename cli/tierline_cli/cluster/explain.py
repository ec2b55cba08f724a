"""`kubectl tierline explain TASK`: where a task is, what was promised it, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tierline_api.quantities import format_quantity
from tierline_cli.cluster.access import Cluster
from tierline_cli.cluster.options import (
    cluster_options,
    complete_task,
    output_option,
    print_json,
    scope_of,
)
from tierline_cli.cluster.views import PlanView, PodView, TaskView, pod_view, task_view
from tierline_cli.live import shown_time


@click.command(name="explain")
@click.argument("task", shell_complete=complete_task)
@cluster_options
@output_option
def command(
    task: str,
    namespace: str | None,
    everywhere: bool,
    context: str | None,
    kubeconfig: str | None,
    output: str,
) -> None:
    """Tell everything that is known of the MemTask TASK."""
    cluster = Cluster(scope_of(namespace, everywhere, context, kubeconfig, name=task))
    found = task_view(cluster.task(task))
    pods = [pod_view(pod) for pod in cluster.pods(found.namespace, task)]
    if output == "json":
        print_json({"task": found, "pods": pods})
        return
    for line in _lines(found, pods):
        click.echo(line)


def _lines(task: TaskView, pods: list[PodView]) -> Iterator[str]:
    yield f"MemTask {task.namespace}/{task.name}: {task.phase} ({task.reason})"
    yield (
        f"  asks        a job every {shown_time(task.period_s)}, each done "
        f"{shown_time(task.deadline_s)} after its release; {task.criticality}"
    )
    if task.node:
        more = f" and {task.placed - 1} more" if task.placed and task.placed > 1 else ""
        yield f"  runs on     {task.node}/{task.device}{more}"
    if task.plan:
        yield from _plan(task, task.plan)
    if task.job_s is not None:
        bound = (
            f"at most {shown_time(task.bound_s)} from release to end, proved"
            if task.bound_s is not None
            else "no guarantee"
        )
        yield f"  promised    {bound}; a job alone takes {shown_time(task.job_s)}"
    if task.jobs:
        times = ", ".join(
            f"{name} {shown_time(value)}"
            for name, value in (
                ("p50", task.response_p50_s),
                ("p99", task.response_p99_s),
                ("worst", task.response_worst_s),
            )
            if value is not None
        )
        yield f"  measured    {task.jobs:,} jobs, {task.misses or 0:,} misses; {times}"
    else:
        yield "  measured    no job has ended yet"
    for pod in pods:
        held = ", waits at its scheduling gate" if pod.gated else ""
        yield f"  pod         {pod.name}: {pod.phase}{held}"
    if not pods:
        yield f"  pod         none; {task.replicas} wanted"
    for condition in task.conditions:
        mark = {"True": "yes", "False": "no"}.get(condition.status, "not known")
        yield f"  {condition.type + '?':<14}{mark}: {condition.message} [{condition.reason}]"


def _plan(task: TaskView, plan: PlanView) -> Iterator[str]:
    resident = plan.resident_extents * plan.extent_bytes
    ring = plan.ring_extents * plan.extent_bytes
    parts = [
        f"{format_quantity(resident)} resident",
        f"{format_quantity(ring)} ring",
        f"{format_quantity(plan.workspace_bytes)} workspace",
    ]
    yield f"  fast memory {', '.join(parts)}"
    streamed = (plan.extents - plan.resident_extents) * plan.extent_bytes
    homes = ", ".join(
        f"{format_quantity(size)} in {tier}" for tier, size in task.tier_bytes.items()
    )
    yield f"  weights     {homes}; up to {format_quantity(streamed)} streamed in each job"
