"""`kubectl tierline why-pending`: why tasks and their pods wait, and what would let them start.

From the MemTask to the end: one that is admitted may still have no pod (a quota), or pods that
kube-scheduler or a kubelet does not let run; what these say stands in the pods and their events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from tierline_api.objects.conditions import ConditionType, Reason
from tierline_cli.cluster.access import Cluster, NotThere
from tierline_cli.cluster.options import (
    cluster_options,
    complete_task,
    output_option,
    print_json,
    scope_of,
)
from tierline_cli.cluster.views import (
    UNSEEN,
    EventView,
    PodView,
    TaskView,
    event_view,
    pod_view,
    task_view,
)
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError

ADVICE: Final = {
    UNSEEN: "no operator has looked at it: see whether one runs and leads "
    "(kubectl get lease,pods -n NAMESPACE-OF-TIERLINE)",
    Reason.PROFILE_MISSING: "start a pod of it, which is then measured, together with other tasks "
    "only if spec.realtime.measuringLimit says how long a job takes; or apply a MemProfile "
    "(tierline profile FILE -o profiles.yaml)",
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
    Reason.NOT_SCHEDULABLE: "let its pods go to a node with such a device (nodeSelector, affinity, "
    "tolerations), or mend the node as the message says",
    Reason.NO_PODS: "start a pod of it, or see why none is made (kubectl get events)",
    Reason.NO_CLAIM: "delete the pods that the message names: the next ones get a claim, and a "
    "place by it",
    Reason.NO_LONGER_HOLDS: "mend what became slower, or delete the pod to have it placed "
    "elsewhere",
    Reason.CHANGE_REFUSED: "it runs on as before; undo the change or make room for it",
    Reason.QUOTA_EXCEEDED: "ask for a larger MemQuota, or delete what is not needed",
    Reason.NODE_GONE: "delete the pod to have it placed elsewhere",
    Reason.BEING_DELETED: "wait until its pods have ended; a finalizer that the message names is "
    "removed by the one who set it",
    Reason.INVALID_SPEC: "correct its spec as the message says",
}
"""Advice for a task that waits, by the reason in its status."""


_SEEN_WITHIN_S: Final = 30


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
    no_pods: str = ""
    """Why it has no pod that could ask for a place."""


@dataclass(frozen=True)
class Stuck:
    """The hindrance of an admitted task's pod."""

    pod: str
    why: str


@dataclass(frozen=True)
class NotRunning:
    """A task that is admitted, and does not run."""

    namespace: str
    task: str
    node: str | None
    message: str
    why: str
    """Why no pod is there; empty if some are."""
    pods: tuple[Stuck, ...]


@dataclass(frozen=True)
class Orphan:
    """A pod whose task is not there."""

    namespace: str
    pod: str
    task: str
    why: str


@dataclass(frozen=True)
class Outside:
    """A pod that runs outside of Tierline."""

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
        where = "" if name is None and cluster.scope.everywhere else cluster.namespace
        events = sorted(map(event_view, cluster.warnings(where)), key=lambda one: one.at)
        absent = _absent_claims(cluster, pods)
    waiting = [_waiting(t, pods) for t in tasks if t.waits]
    known = {(task.namespace, task.name) for task in tasks}
    orphans = [
        Orphan(where, pod.name, pod.task, _last(events, where, pod))
        for where, pod in pods
        if pod.gated and (where, pod.task) not in known
    ]
    outside = [Outside(where, pod.name, pod.task) for where, pod in pods if pod.outside]
    now = datetime.now(UTC)
    not_running = [_not_running(task, pods, events, absent, now) for task in tasks if task.stands]
    if output == "json":
        found = {"waiting": waiting, "not_running": not_running, "pods_without_task": orphans}
        print_json({**found, "pods_outside": outside})
        return
    for one in waiting:
        _show(one)
    for orphan in orphans:
        _show_orphan(orphan)
    for pod_outside in outside:
        _show_outside(pod_outside)
    for one_more in not_running:
        _show_not_running(one_more)
    if not_running:
        click.echo(f"admitted, but not running: {len(not_running)}")
    if not (waiting or orphans or outside or not_running):
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
        advice=_advice(task),
        gated_pods=tuple(gated),
        no_pods=_no_pods(task),
    )


def _advice(task: TaskView) -> str:
    if task.reason == Reason.NO_PODS and _no_pods(task):
        return "mend what forbids its pods; it asks for a place again when one is there"
    return ADVICE.get(task.reason, "see kubectl describe memtask")


def _no_pods(task: TaskView) -> str:
    """Why no pod of a task is there, where the cluster refuses them."""
    ready = task.condition(ConditionType.READY)
    return ready.message if ready and ready.reason == Reason.REPLICA_FAILURE else ""


def _not_running(
    task: TaskView,
    pods: list[tuple[str, PodView]],
    events: Sequence[EventView],
    absent: frozenset[tuple[str, str]],
    now: datetime,
) -> NotRunning:
    mine = [
        p for where, p in pods if where == task.namespace and p.task == task.name and not p.over
    ]
    ready, admitted = (task.condition(c) for c in (ConditionType.READY, ConditionType.ADMITTED))
    stuck = [
        Stuck(
            pod.name,
            pod.waits
            or _without_claim(pod, task.namespace, absent)
            or _last(events, task.namespace, pod)
            or _unseen(pod, admitted.since if admitted else "", now)
            or "is starting",
        )
        for pod in mine
        if not pod.ready
    ]
    makers = (task.name, *task.owners)
    about = [
        event.message
        for event in events
        if event.namespace == task.namespace
        and any(event.is_of(maker) for maker in makers)
        and event.is_after(ready.since if ready else "")
    ]
    return NotRunning(
        namespace=task.namespace,
        task=task.name,
        node=task.node,
        message=ready.message if ready else "",
        why="" if mine else next(reversed(about), "no pod of it was made"),
        pods=tuple(stuck),
    )


def _absent_claims(cluster: Cluster, pods: list[tuple[str, PodView]]) -> frozenset[tuple[str, str]]:
    """Claims that pods name of which no scheduler has spoken, and that are not there."""
    named = {(where, claim) for where, pod in pods if pod.unseen_by for claim in pod.claims}
    return frozenset(claim for claim in named if not cluster.has_claim(*claim))


def _without_claim(pod: PodView, namespace: str, absent: frozenset[tuple[str, str]]) -> str:
    """Which claims a pod names that are not there: no scheduler looks at it before."""
    missing = [claim for claim in pod.claims if pod.unseen_by and (namespace, claim) in absent]
    return f"there is no ResourceClaim {', '.join(missing)}, which it names" if missing else ""


def _unseen(pod: PodView, admitted: str, now: datetime) -> str:
    """That nobody schedules a pod, though it has had its place for longer than that takes."""
    try:
        since = max(map(datetime.fromisoformat, (pod.created, admitted)))
    except ValueError:
        return ""
    if not pod.unseen_by or (now - since).total_seconds() < _SEEN_WITHIN_S:
        return ""
    return f"no scheduler named {pod.unseen_by} has looked at it"


def _last(events: Sequence[EventView], namespace: str, pod: PodView) -> str:
    """The last warning about a pod that holds, Tierline's before others'; empty without one."""
    named = [e for e in events if (e.namespace, e.kind, e.name) == (namespace, "Pod", pod.name)]
    about = [event for event in named if event.holds_of(pod)]
    told = [event for event in about if event.ours] or about
    return f"{told[-1].reason}: {told[-1].message}" if told else ""


def _show_orphan(orphan: Orphan) -> None:
    click.echo(f"Pod {orphan.namespace}/{orphan.pod} waits: there is no MemTask {orphan.task}")
    if orphan.why:
        click.echo(f"  why:        {orphan.why}")
    click.echo("  what helps: create it, or correct the pod's annotations tierline.io/…")


def _show_outside(one: Outside) -> None:
    click.echo(f"Pod {one.namespace}/{one.pod} runs outside of Tierline, not as MemTask {one.task}")
    click.echo(
        "  why:        it was made while Tierline's admission policies were not in force, and has "
        "neither claim nor gate"
    )
    click.echo("  what helps: delete it; the next one gets both")


def _show_not_running(one: NotRunning) -> None:
    where = f" on {one.node}" if one.node else ""
    click.echo(f"MemTask {one.namespace}/{one.task}: admitted{where}, but not running")
    if one.message:
        click.echo(f"  ready:      {one.message}")
    if one.why:
        click.echo(f"  why:        {one.why}")
    for stuck in one.pods:
        click.echo(f"  pod {stuck.pod}: {stuck.why}")


def _show(one: Waiting) -> None:
    click.echo(f"MemTask {one.namespace}/{one.task}: {one.phase} ({one.reason})")
    if one.message:
        click.echo(f"  why:        {one.message}")
    if one.no_pods:
        click.echo(f"  ready:      {one.no_pods}")
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
