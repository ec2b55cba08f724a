"""The cluster as the operator has seen it, and the fleet that is placed from it.

Objects come from watches, listings and the answers to the operator's own writes, in any order; of
two states of an object the one with the higher resourceVersion counts, so an old state that arrives
late changes nothing (Kubernetes ≥ 1.35 promises that they compare as numbers). What is gone stays
gone until something newer arrives.

Not safe for threads: the engine lets nobody touch it while the fleet settles in another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tierline_api.objects.conditions import ConditionStatus, ConditionType, Reason, find
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile, MemProfileStatus
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.memtask import MemTask
from tierline_kube.resource import (
    MEMNODE,
    MEMPROFILE,
    MEMQUOTA,
    MEMTASK,
    NODE,
    Json,
    Resource,
)
from tierline_operator import metrics
from tierline_operator.cluster.decode import (
    KnownClaim,
    KnownPart,
    KnownPod,
    Meta,
    Unreadable,
    claim_of,
    meta_of,
    model_of,
    part_of,
    pod_of,
    worker_of,
)
from tierline_operator.cluster.lasting import Lasting
from tierline_operator.cluster.pulses import Pulses
from tierline_operator.cluster.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE
from tierline_operator.cluster.returned import Returned
from tierline_operator.cluster.unclaimed import Unclaimed
from tierline_operator.placement.books.seats import Claim, ClaimKey, DeviceKey, TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.needs.fitting import Worker

log = logging.getLogger(__name__)
_SIGNS: Final = {"lastSeen", "conditions"}
"""Fields that an agent writes every few seconds; nothing is planned by them."""
Name = tuple[str, str]
"""Namespace and name."""


def name_of(body: Json) -> Name:
    """How an object is named."""
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class View:
    """Everything that is known of the cluster."""

    def __init__(self, fleet: Fleet, stalled_after_s: float = 600.0) -> None:
        self.fleet = fleet
        self.tasks: dict[TaskKey, tuple[MemTask, Meta]] = {}
        self.claims: dict[ClaimKey, KnownClaim] = {}
        self.pods: dict[Name, KnownPod] = {}
        self.templates: dict[Name, KnownPart] = {}
        self.deployments: dict[Name, KnownPart] = {}
        self.late: set[TaskKey] = set()
        """Tasks that have been admitted for long without being ready, since the last turn."""
        self.silent: set[str] = set()
        """Nodes of whose agents' silence their MemNodes are still to tell."""
        self.unshown: dict[Name, MemProfileStatus] = {}
        """Parts of MemProfiles that are still to be shown."""
        self._pods_of: dict[TaskKey, set[Name]] = {}
        self._measured: set[ClaimKey] = set()
        self._kept: Lasting[TaskKey] = Lasting(fleet.rules.keep_free_s)
        self._unready: set[TaskKey] = set()
        """Tasks that are admitted and not ready, as their status says."""
        self.stalled: Lasting[TaskKey] = Lasting(stalled_after_s)
        self._claim_of: dict[Name, ClaimKey] = {}
        """By namespace and uid of its pod."""
        self.unclaimed = Unclaimed(fleet)
        self._returned = Returned()
        self.pulses = Pulses()
        self._workers: dict[str, Worker] = {}
        self._inventories: dict[str, Json] = {}
        """Of each MemNode what its status says but for signs of life."""
        self._versions: dict[tuple[str, str, str], int] = {}
        self._takes: dict[str, Callable[[Json, Name], set[TaskKey]]] = {
            MEMTASK.plural: self._task,
            MEMPROFILE.plural: self._profile,
            NODE.plural: self._worker,
            MEMNODE.plural: self._node,
            MEMQUOTA.plural: self._quota,
            CLAIM.plural: self._claim,
            POD.plural: self._pod,
            TEMPLATE.plural: self._template,
            DEPLOYMENT.plural: self._deployment,
        }

    def take(self, resource: Resource, body: Json, *, gone: bool = False) -> set[TaskKey]:
        """Take an object as it is, or was last; returns the tasks that may be affected."""
        name = name_of(body)
        key = (resource.plural, *name)
        version = int(body["metadata"]["resourceVersion"])
        known = self._versions.get(key, 0)
        if version < known:
            return set()
        if gone:
            return self.forget(resource, name)
        if version == known:  # the watch shows what an own write was answered with
            return set()
        self._versions[key] = version
        try:
            return self._takes[resource.plural](body, name)
        except Unreadable as error:
            log.warning(
                "%s %s cannot be read and is left alone: %s; is its CRD of this release?",
                resource.kind,
                "/".join(name),
                error,
            )
            return set()

    def forget(self, resource: Resource, name: Name) -> set[TaskKey]:
        """Note that an object is gone."""
        self._versions.pop((resource.plural, *name), None)
        task = TaskKey(*name)
        if resource == MEMTASK:
            self.tasks.pop(task, None)
            self._unready.discard(task)
            self.fleet.drop_task(task)
        elif resource == MEMPROFILE:
            self.unshown.pop(name, None)
            self.fleet.drop_profile(*name)
        elif resource == NODE:
            self._workers.pop(name[1], None)
            self.fleet.drop_worker(name[1])
            return set()
        elif resource == MEMNODE:
            self._inventories.pop(name[1], None)
            self.pulses.forget(name[1])
            self.silent.discard(name[1])
            self.fleet.drop_node(name[1])
            self._show_worker(name[1])
        elif resource == MEMQUOTA:
            self.fleet.drop_quota(*name)
        elif resource == CLAIM:
            known = self.claims.pop(ClaimKey(*name), None)
            self._measured.discard(ClaimKey(*name))
            self._returned.forget(ClaimKey(*name))
            self.fleet.drop_claim(ClaimKey(*name))
            self.unclaimed.drop_claim(ClaimKey(*name))
            return self._drop_claim_of(known) if known else set()
        elif resource == POD:
            return self._drop_pod(name)
        elif resource == TEMPLATE:
            self.templates.pop(name, None)
        elif resource == DEPLOYMENT:
            self.deployments.pop(name, None)
        return {task}

    def turn(self, now: datetime, limit_s: float) -> datetime | None:
        """Tell the fleet what has become of it by now; returns when to look again.

        That is which tasks are measured for longer than `limit_s` (clocks of two replicas may
        differ by little against that), which nodes are barred for claims that were given back
        there, and whose agents are silent.
        """
        silent, next_ = self.pulses.turn(now)
        for node in silent:
            self._show_worker(node)
        self.silent |= silent
        changed, again = self._returned.turn(now)
        for claim in changed:
            if claim in self.claims:
                self._show(self.claims[claim])
        for task in self._kept.turn(self.fleet.kept, now):
            self.fleet.keep_no_longer(task)
        self.late = self.stalled.turn(self._unready, now)
        self.late |= self.unclaimed.turn(self.pods, now)
        times = [at for at in (again, next_, self._kept.next, self.stalled.next) if at is not None]
        times += self.unclaimed.next
        for key in list(self._measured):
            known = self.claims[key]
            due = _time_of(known.claim.allocated, now) + timedelta(seconds=limit_s)
            if due > now:
                times.append(due)
            elif not known.claim.overdue:
                self.claims[key] = replace(known, claim=replace(known.claim, overdue=True))
                self.fleet.put_claim(self.claims[key].claim)
        return min(times, default=None)

    def known(self, resource: Resource) -> dict[Name, int]:
        """The objects of a kind that are there, with their versions."""
        return {
            (namespace, name): version
            for (plural, namespace, name), version in self._versions.items()
            if plural == resource.plural
        }

    def pods_of(self, task: TaskKey) -> list[KnownPod]:
        """The pods of a task, in the order of their names."""
        return [self.pods[name] for name in sorted(self._pods_of.get(task, ()))]

    def claims_of(self, task: TaskKey) -> list[KnownClaim]:
        """The claims of a task, in the order of their names."""
        return [self.claims[claim.key] for claim in self.fleet.claims_of(task)]

    def unclaimed_of(self, task: TaskKey) -> list[KnownPod]:
        """The pods of a task that have run without a claim for some time, and are to stay."""
        return list(filter(self.unclaimed.is_told, self.pods_of(task)))

    def nobodys_of(self, task: TaskKey) -> list[KnownClaim]:
        """The claims of a task that have had a place for long, and no pod."""
        known = self.claims_of(task)
        return [one for one in known if self.unclaimed.is_nobodys(one.claim.key)]

    def _task(self, body: Json, name: Name) -> set[TaskKey]:
        key, meta = TaskKey(*name), meta_of(body)
        before = self.tasks.get(key)
        generation = body["metadata"].get("generation")
        if before is not None and before[1].uid == meta.uid and generation is not None:
            known = before[0]
            if generation == known.metadata.generation:
                body = {**body, "spec": known.spec}  # of one generation there is one spec
        task = model_of(MemTask, body)
        self.tasks[key] = (task, meta)
        if not is_unready(task):
            self._unready.discard(key)
        elif key not in self._unready:
            self._unready.add(key)
            if before is None and is_stalled(task):
                self.stalled.resume(key)
        self.fleet.put_task(task)
        return {key}

    def _profile(self, body: Json, name: Name) -> set[TaskKey]:
        profile = model_of(MemProfile, body)
        if profile.status == profile.shown:
            self.unshown.pop(name, None)
        else:
            self.unshown[name] = profile.shown
        self.fleet.put_profile(profile)
        return {TaskKey(*name)}

    def _worker(self, body: Json, _: Name) -> set[TaskKey]:
        worker = self._workers[body["metadata"]["name"]] = worker_of(body)
        self._show_worker(worker.name)
        return set()

    def _show_worker(self, name: str) -> None:
        """Show the fleet a Node, with whether its agent is well."""
        worker = self._workers.get(name)
        if worker is not None:
            self.fleet.put_worker(replace(worker, agentless=self.pulses.unfit(name)))

    def _node(self, body: Json, name: Name) -> set[TaskKey]:
        status = body.get("status") or {}
        signs = {key: status[key] for key in _SIGNS & status.keys()}
        inventory = {key: value for key, value in status.items() if key not in _SIGNS}
        self.pulses.take(model_of(MemNode, {**body, "status": signs}))
        self._show_worker(name[1])
        if self._inventories.get(name[1]) != inventory:
            self.fleet.put_node(model_of(MemNode, {**body, "status": inventory}))
            self._inventories[name[1]] = inventory
        return set()

    def _quota(self, body: Json, _: Name) -> set[TaskKey]:
        self.fleet.put_quota(model_of(MemQuota, body))
        return set()

    def _claim(self, body: Json, name: Name) -> set[TaskKey]:
        before = self.claims.get(ClaimKey(*name))
        known = claim_of(body, before)
        key = known.claim.key
        if before is not None:
            self._compare(before, known)
        else:
            self._kept.again(known.claim.task_key)
        if known.meta.owner is not None:
            self._claim_of[key.namespace, known.meta.owner["uid"]] = key
        self.claims[key] = known
        if known.claim.profiling:
            self._measured.add(known.claim.key)
        else:
            self._measured.discard(known.claim.key)
        self.unclaimed.see_claim(known)
        tasks = {known.claim.task_key} | ({before.claim.task_key} if before else set())
        self._show(known)
        last = before.claim if before is not None and before.claim.place else known.claim
        return tasks | {self.claims[key].claim.task_key} | self._account_for(last)

    def _account_for(self, claim: Claim) -> set[TaskKey]:
        """See how the pod of a claim, as it was last, stands by now; returns its task."""
        pod = self.pods.get((claim.key.namespace, claim.pod))
        if pod is None:
            return set()
        self._account(pod, claim.place)
        return {TaskKey(claim.key.namespace, pod.task)}

    def _account(self, pod: KnownPod, last: DeviceKey | None) -> None:
        """See whether a pod has a claim where it runs; `last` is where it had one, if known."""
        owned = self._claim_of.get((pod.meta.namespace, pod.meta.uid))
        keys = filter(None, (owned, ClaimKey(pod.meta.namespace, pod.claim)))
        self.unclaimed.see(pod, (self.claims[key] for key in keys if key in self.claims), last)

    def _drop_claim_of(self, known: KnownClaim) -> set[TaskKey]:
        """A claim is gone: its pod may have another by now, or run without one."""
        key = known.claim.key
        owner = known.meta.owner
        if owner is None:  # it had one, or never did
            had = [pod for pod, claim in self._claim_of.items() if claim == key]
        else:
            had = [(key.namespace, owner["uid"])]
        for pod in had:
            if self._claim_of.get(pod) == key:
                del self._claim_of[pod]
        return {known.claim.task_key} | self._account_for(known.claim)

    def _compare(self, before: KnownClaim, known: KnownClaim) -> None:
        """Note whether kube-scheduler gave a claim back, or it has a place again."""
        place = before.claim.place
        if before.meta.uid != known.meta.uid:
            self._returned.forget(known.claim.key)
        elif place is None and known.claim.place is not None:
            self._returned.place(known.claim.key)
        elif (
            place is not None
            and known.claim.place is None
            and not known.meta.leaving
            and known.meta.owner is not None
            and not self._has_been_bound(known)
        ):
            self._returned.note(known.claim.key, place.node)
            metrics.RETURNED.inc()

    def _show(self, known: KnownClaim) -> None:
        """Show the fleet a claim with what its pod asks: one that waits, only with its pod.

        It is of the task that its pod names, whatever became of its labels.
        """
        claim = known.claim
        pod = self.pods.get((claim.key.namespace, claim.pod))
        if pod is not None and not known.is_of(pod):
            pod = None
        if claim.place is None and (pod is None or pod.over):
            self.fleet.drop_claim(claim.key)
            return
        if pod is not None:
            if pod.node:
                self._returned.forget(claim.key)
            returned = self._returned.nodes(claim.key)
            claim = replace(
                claim,
                task=pod.task or claim.task,
                # Of an allocated claim its place is the truth, and no news.
                needs=pod.needs if claim.place else replace(pod.needs, node=pod.node),
                barred=self._returned.barred(claim.key),
                returned=returned,
                times_returned=self._returned.times(claim.key),
                unscheduled=pod.unscheduled if returned else "",
            )
        self.claims[claim.key] = replace(known, claim=claim)
        self.fleet.put_claim(claim)

    def _has_been_bound(self, known: KnownClaim) -> bool:
        """Whether the pod of a claim is on its node, or was: it is not kube-scheduler's."""
        pod = self.pods.get((known.claim.key.namespace, known.claim.pod))
        return pod is not None and known.is_of(pod) and (pod.over or bool(pod.node))

    def _pod(self, body: Json, name: Name) -> set[TaskKey]:
        pod = pod_of(body)
        of = TaskKey(name[0], pod.task)
        before = self._drop_pod(name, unless=pod)  # one of the same name may be another task's
        self.pods[name] = pod
        self._pods_of.setdefault(of, set()).add(name)
        claim = self._claim_of.get((name[0], pod.meta.uid))
        if claim is not None:
            before |= {self.claims[claim].claim.task_key}
            self._show(self.claims[claim])
        self._account(pod, None)
        return before | {of}

    def _drop_pod(self, name: Name, unless: KnownPod | None = None) -> set[TaskKey]:
        """Forget what is known of a pod, which is gone `unless` it is this one."""
        pod = self.pods.pop(name, None)
        if pod is None:
            return set()
        if unless is None or unless.meta.uid != pod.meta.uid:
            self.unclaimed.drop(pod)
        of = TaskKey(name[0], pod.task)
        pods = self._pods_of[of]
        pods.discard(name)
        if not pods:
            del self._pods_of[of]
        return {of}

    def _template(self, body: Json, name: Name) -> set[TaskKey]:
        self.templates[name] = part_of(body)
        return {TaskKey(*name)}

    def _deployment(self, body: Json, name: Name) -> set[TaskKey]:
        self.deployments[name] = part_of(body)
        return {TaskKey(*name)}


def is_unready(task: MemTask) -> bool:
    """Whether it is admitted, and its pods do not run, by its status; it may want none."""
    conditions = task.status.conditions if task.status else ()
    admitted, ready = (
        find(conditions, kind) for kind in (ConditionType.ADMITTED, ConditionType.READY)
    )
    is_admitted = admitted is not None and admitted.status is ConditionStatus.TRUE
    if ready is None:
        return is_admitted
    unready = ready.status is not ConditionStatus.TRUE and ready.reason != Reason.NO_REPLICAS
    return is_admitted and unready


def is_stalled(task: MemTask) -> bool:
    """Whether its status says so."""
    ready = find(task.status.conditions, ConditionType.READY) if task.status else None
    return ready is not None and ready.reason == Reason.STALLED


def _time_of(text: str, otherwise: datetime) -> datetime:
    """When a claim was allocated; operators write that, and people might."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return otherwise
