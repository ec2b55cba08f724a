"""`kubectl tierline why-pending`: why tasks and their pods wait, and what would let them start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from tierline_api.conditions import Reason
from tierline_cli.cluster.access import Cluster, NotThere
from tierline_cli.cluster.options import (
    cluster_options,
    complete_task,
    output_option,
    print_json,
    scope_of,
)
from tierline_cli.cluster.views import UNSEEN, PodView, TaskView, pod_view, task_view
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

ADVICE: Final = {
    UNSEEN: "no operator has looked at it: see whether one runs and leads "
    "(kubectl get lease,pods -n NAMESPACE-OF-TIERLINE)",
    Reason.PROFILE_MISSING: "start a pod of it, which is then measured, beside other tasks only if "
    "spec.realtime.measuringLimit says how long a job takes; or apply a MemProfile (tierline "
    "profile FILE -o profiles.yaml)",
    Reason.PROFILING: "wait until it is measured; admission follows by itself",
    Reason.PROFILING_FAILED: "see why its pod ran no jobs in time (kubectl logs), then delete the "
    "pod to have it measured again; or apply a MemProfile",
    Reason.PENDING: "wait: it is about to be tried",
    Reason.DEADLINE_INFEASIBLE: "lengthen its deadline or period, reserve more memory so that less "
    "is streamed, or let something else go",
    Reason.MEMORY_INSUFFICIENT: "let it stream (spec.swap.policy Auto), let something else go, or "
    "add a node with more fast memory",
    Reason.TIER_INSUFFICIENT: "name further tiers in spec.swap.tiers, or enlarge the tier",
    Reason.RING_TOO_SMALL: "raise spec.memory.budget: one layer needs more than that at once",
    Reason.NO_MATCHING_DEVICE: "change spec.device, or add a node that has such a device",
    Reason.NO_LONGER_HOLDS: "mend what became slower, or delete the pod to have it placed "
    "elsewhere",
    Reason.CHANGE_REFUSED: "it runs on as before; undo the change or make room for it",
    Reason.QUOTA_EXCEEDED: "ask for a larger MemQuota, or delete what is not needed",
    Reason.NODE_GONE: "delete the pod to have it placed elsewhere",
    Reason.BEING_DELETED: "wait until its pods have ended",
    Reason.INVALID_SPEC: "correct its spec as the message says",
}
"""What would help, by the reason why a task waits."""


@dataclass(frozen=True)
class Waiting:
    """A task that waits."""

    namespace: str
    task: str
    phase: str
    reason: str
    message: str
    advice: str
    gated_pods: tuple[str, ...]


@dataclass(frozen=True)
class Orphan:
    """A pod whose task is not there."""

    namespace: str
    pod: str
    task: str


@click.command(name="why-pending")
@click.argument("name", required=False, shell_complete=complete_task)
@cluster_options
@output_option
def command(
    name: str | None,
    namespace: str | None,
    everywhere: bool,
    context: str | None,
    kubeconfig: str | None,
    output: str,
) -> None:
    """Say why MemTasks are not admitted, and what would help; of all, or of a task or pod NAME."""
    with Cluster(scope_of(namespace, everywhere, context, kubeconfig, name=name)) as cluster:
        tasks, pods = _read(cluster, name)
    waiting = [_waiting(t, pods) for t in tasks if t.waits]
    known = {(task.namespace, task.name) for task in tasks}
    orphans = [
        Orphan(where, pod.name, pod.task)
        for where, pod in pods
        if pod.gated and (where, pod.task) not in known
    ]
    if output == "json":
        print_json({"waiting": waiting, "pods_without_task": orphans})
        return
    for one in waiting:
        _show(one)
    for orphan in orphans:
        click.echo(
            f"Pod {orphan.namespace}/{orphan.pod} waits: there is no MemTask {orphan.task}\n"
            "  what helps: create it, or correct the pod's annotation tierline.io/task"
        )
    if not waiting and not orphans:
        _show_none(cluster, tasks, name)


def _read(cluster: Cluster, name: str | None) -> tuple[list[TaskView], list[tuple[str, PodView]]]:
    """The tasks that were asked for, and their pods with their namespaces."""
    if name is None:
        tasks = [task_view(found) for found in cluster.tasks()]
        found = cluster.pods("" if cluster.scope.everywhere else cluster.namespace)
    else:
        task = _task_of(cluster, name)
        found = cluster.pods(cluster.namespace, task)
        try:
            tasks = [task_view(cluster.task(task))]
        except NotThere:
            tasks = []
    return tasks, [(pod["metadata"]["namespace"], pod_view(pod)) for pod in found]


def _task_of(cluster: Cluster, name: str) -> str:
    """The task of this name, or that of the pod of this name.

    Raises:
        CommandError: there is neither.
    """
    try:
        cluster.task(name)
    except NotThere:
        try:
            pod = pod_view(cluster.pod(name))
        except NotThere as error:
            raise CommandError(
                f"there is neither MemTask/{name} nor Pod/{name} in namespace {cluster.namespace}; "
                "look for it with -A",
                EXIT_BAD_INPUT,
            ) from error
        if not pod.task:
            raise CommandError(
                f"Pod/{name} does not use Tierline: it has no annotation tierline.io/task; "
                f"see kubectl describe pod {name}",
                EXIT_BAD_INPUT,
            ) from None
        return pod.task
    return name


def _waiting(task: TaskView, pods: list[tuple[str, PodView]]) -> Waiting:
    gated = [
        p.name for where, p in pods if where == task.namespace and p.task == task.name and p.gated
    ]
    return Waiting(
        namespace=task.namespace,
        task=task.name,
        phase=task.phase,
        reason=task.reason,
        message=task.message,
        advice=ADVICE.get(task.reason, "see kubectl describe memtask"),
        gated_pods=tuple(gated),
    )


def _show(one: Waiting) -> None:
    click.echo(f"MemTask {one.namespace}/{one.task}: {one.phase} ({one.reason})")
    if one.message:
        click.echo(f"  why:        {one.message}")
    click.echo(f"  what helps: {one.advice}")
    if one.gated_pods:
        click.echo(f"  pods that wait at their gate: {', '.join(one.gated_pods)}")


def _show_none(cluster: Cluster, tasks: list[TaskView], name: str | None) -> None:
    if name is not None and tasks:
        task = tasks[0]
        click.echo(f"MemTask {task.namespace}/{task.name} does not wait: {task.message}")
    elif tasks:
        click.echo(f"nothing waits: {len(tasks)} MemTasks, all admitted")
    else:
        where = "any namespace" if cluster.scope.everywhere else f"namespace {cluster.namespace}"
        click.echo(f"there is no MemTask in {where}")
