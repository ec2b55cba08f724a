"""What the operator has seen of the cluster, and the fleet that is placed from it.

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

from tierline_api.memnode import MemNode
from tierline_api.memprofile import MemProfile
from tierline_api.memquota import MemQuota
from tierline_api.memtask import MemTask
from tierline_kube.resource import MEMNODE, MEMPROFILE, MEMQUOTA, MEMTASK, Json, Resource
from tierline_operator.placement.fleet import Fleet
from tierline_operator.placement.seats import ClaimKey, TaskKey
from tierline_operator.reading import (
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
)
from tierline_operator.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE

log = logging.getLogger(__name__)
Name = tuple[str, str]
"""Namespace and name."""


def name_of(body: Json) -> Name:
    """How an object is named."""
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class View:
    """Everything that is known of the cluster."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.tasks: dict[TaskKey, tuple[MemTask, Meta]] = {}
        self.claims: dict[ClaimKey, KnownClaim] = {}
        self.pods: dict[Name, KnownPod] = {}
        self.templates: dict[Name, KnownPart] = {}
        self.deployments: dict[Name, KnownPart] = {}
        self._pods_of: dict[TaskKey, set[Name]] = {}
        self._measured: set[ClaimKey] = set()
        self._versions: dict[tuple[str, str, str], int] = {}
        self._takes: dict[str, Callable[[Json, Name], set[TaskKey]]] = {
            MEMTASK.plural: self._task,
            MEMPROFILE.plural: self._profile,
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
            self.fleet.drop_task(task)
        elif resource == MEMPROFILE:
            self.fleet.drop_profile(*name)
        elif resource == MEMNODE:
            self.fleet.drop_node(name[1])
        elif resource == MEMQUOTA:
            self.fleet.drop_quota(*name)
        elif resource == CLAIM:
            known = self.claims.pop(ClaimKey(*name), None)
            self._measured.discard(ClaimKey(*name))
            self.fleet.drop_claim(ClaimKey(*name))
            return {known.claim.task_key} if known else set()
        elif resource == POD:
            return self._drop_pod(name)
        elif resource == TEMPLATE:
            self.templates.pop(name, None)
        elif resource == DEPLOYMENT:
            self.deployments.pop(name, None)
        return {task}

    def be_late(self, now: datetime, limit_s: float) -> datetime | None:
        """Tell the fleet who is measured for longer than `limit_s`; returns when to look again.

        Clocks of two replicas may differ by little against the limit.
        """
        times = []
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
        self.fleet.put_task(task)
        return {key}

    def _profile(self, body: Json, name: Name) -> set[TaskKey]:
        self.fleet.put_profile(model_of(MemProfile, body))
        return {TaskKey(*name)}

    def _node(self, body: Json, _: Name) -> set[TaskKey]:
        self.fleet.put_node(model_of(MemNode, body))
        return set()

    def _quota(self, body: Json, _: Name) -> set[TaskKey]:
        self.fleet.put_quota(model_of(MemQuota, body))
        return set()

    def _claim(self, body: Json, name: Name) -> set[TaskKey]:
        known = claim_of(body, self.claims.get(ClaimKey(*name)))
        self.claims[known.claim.key] = known
        if known.claim.profiling:
            self._measured.add(known.claim.key)
        else:
            self._measured.discard(known.claim.key)
        self.fleet.put_claim(known.claim)
        return {known.claim.task_key}

    def _pod(self, body: Json, name: Name) -> set[TaskKey]:
        pod = pod_of(body)
        of = TaskKey(name[0], pod.task)
        before = self._drop_pod(name)  # one of the same name may have been another task's
        self.pods[name] = pod
        self._pods_of.setdefault(of, set()).add(name)
        return before | {of}

    def _drop_pod(self, name: Name) -> set[TaskKey]:
        pod = self.pods.pop(name, None)
        if pod is None:
            return set()
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


def _time_of(text: str, otherwise: datetime) -> datetime:
    """When a claim was allocated; operators write that, and people might."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return otherwise
