"""`kubectl tierline explain TASK`: where a task is, what was promised it, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tierline_api.schema.quantities import format_quantity, size_for_people
from tierline_cli.cluster.access import Cluster
from tierline_cli.cluster.options import (
    cluster_options,
    complete_task,
    output_option,
    print_json,
    scope_of,
)
from tierline_cli.cluster.views import PlanView, PodView, TaskView, pod_view, task_view
from tierline_cli.reporting.live import shown_time


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
    with Cluster(scope_of(namespace, everywhere, context, kubeconfig, name=task)) as cluster:
        found = task_view(cluster.task(task))
        pods = [pod_view(pod) for pod in cluster.pods(found.namespace, task)]
    if output == "json":
        print_json({"task": found, "pods": pods})
        return
    for line in _lines(found, pods):
        click.echo(line)


def _lines(task: TaskView, pods: list[PodView]) -> Iterator[str]:
    why = "" if task.reason == task.phase else f" ({task.reason})"
    yield f"MemTask {task.namespace}/{task.name}: {task.phase}{why}"
    said = [
        ("asks", _asked(task)),
        *([("runs on", _place(task))] if task.node else []),
        *(_plan(task, task.plan) if task.plan else ()),
        *([("promised", _promise(task))] if task.job_s is not None else []),
        ("measured", _measured(task)),
        *(("pod", _pod(pod)) for pod in pods),
        *([] if pods else [("pod", f"none; {task.replicas} wanted")]),
    ]
    for condition in task.conditions:
        mark = {"True": "yes", "False": "no"}.get(condition.status, "not known")
        said.append((f"{condition.type}?", f"{mark}: {condition.message} [{condition.reason}]"))
    for name, text in said:
        yield f"  {name:<14}{text}"


def _asked(task: TaskView) -> str:
    return (
        f"a job every {shown_time(task.period_s)}, each done {shown_time(task.deadline_s)} after "
        f"its release; {task.criticality}"
    )


def _place(task: TaskView) -> str:
    more = f" and {task.placed - 1} more" if task.placed and task.placed > 1 else ""
    return f"{task.node}/{task.device}{more}"


def _plan(task: TaskView, plan: PlanView) -> Iterator[tuple[str, str]]:
    resident = plan.resident_extents * plan.extent_bytes
    ring = plan.ring_extents * plan.extent_bytes
    parts = [
        f"{format_quantity(resident)} resident",
        f"{format_quantity(ring)} ring",
        f"{size_for_people(plan.workspace_bytes)} workspace",
    ]
    yield "fast memory", ", ".join(parts)
    streamed = (plan.extents - plan.resident_extents) * plan.extent_bytes
    homes = [f"{format_quantity(size)} in {tier}" for tier, size in task.tier_bytes.items()]
    yield "weights", f"{', '.join(homes)}; {format_quantity(streamed)} streamed in each job"


def _promise(task: TaskView) -> str:
    bound = (
        f"at most {shown_time(task.bound_s)} from release to end, proved"
        if task.bound_s is not None
        else "no guarantee"
    )
    return f"{bound}; a job alone takes {shown_time(task.job_s)}"


def _measured(task: TaskView) -> str:
    if not task.jobs:
        return "no job has ended yet"
    times = {
        "p50": task.response_p50_s,
        "p99": task.response_p99_s,
        "worst": task.response_worst_s,
    }
    shown = [f"{name} {shown_time(s)}" for name, s in times.items() if s is not None]
    return ", ".join([f"{task.jobs:,} jobs, {task.misses or 0:,} of them late", *shown])


def _pod(pod: PodView) -> str:
    held = ", waits at its scheduling gate" if pod.gated else ""
    return f"{pod.name}: {pod.phase}{held}"
