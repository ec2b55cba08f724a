"""What belongs to one task in the cluster, step by step brought to where it should be.

Each step compares what is seen with what should be and writes the difference, if any: a step may be
repeated, left out or cut off at any point. The order matters across tasks: who lost its place or
its guarantee is told so (`notes`) before a claim is allocated that needs the room (`allocate`), and
a pod leaves its gate only when its claim is seen allocated (`open_gates`).

Invariant: every write is preceded by `Leadership.check`, and every answer is taken into the view
before anything else is decided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from tierline_api.conditions import ConditionStatus, ConditionType, Reason, find
from tierline_api.memtask import MemTask, MemTaskSpec
from tierline_api.memtask_status import MemTaskStatus
from tierline_api.optin import INLINE_NEEDED
from tierline_kube.client import APPLY, JSON_PATCH, MERGE, Kube
from tierline_kube.errors import Conflict, KubeError, NotFound, Refused
from tierline_kube.events import Reporter, event
from tierline_kube.resource import EVENT, MEMPROFILE, MEMTASK, REPLICASET, Json, Resource
from tierline_operator import metrics
from tierline_operator.inline import InlineError, memtask_of
from tierline_operator.leader import Leadership
from tierline_operator.placement.seats import Standing, TaskKey
from tierline_operator.reading import KnownClaim, KnownPod, Meta
from tierline_operator.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE
from tierline_operator.status import status_of
from tierline_operator.view import Name, View
from tierline_operator.writing import (
    FINALIZER,
    MANAGED_BY,
    allocation_patch,
    claim_template,
    deployment,
    gate_removal,
    notes_patch,
    owned_by,
)

log = logging.getLogger(__name__)
_TOLD = (
    *(ConditionType.PROFILED, ConditionType.ADMITTED, ConditionType.READY),
    ConditionType.DEADLINES_MET,
)
"""Conditions of which a change is worth an event, in the order in which they come true."""


class Stale(Exception):  # noqa: N818 - a state, not a mistake
    """An object is not as it was seen: it must be read again."""

    def __init__(self, resource: Resource, name: Name) -> None:
        super().__init__(f"{resource.kind} {'/'.join(name)} has changed")
        self.resource, self.name = resource, name


class Tending:
    """The steps, in their order."""

    def __init__(self, kube: Kube, leadership: Leadership, view: View) -> None:
        self._kube = kube
        self._leadership = leadership
        self._view = view
        self._told: set[tuple[str, str]] = set()
        self.steps: tuple[Callable[[TaskKey], Awaitable[None]], ...] = (
            self.inline,
            self.belongings,
            self.notes,
            self.allocate,
            self.open_gates,
            self.status,
            self.release,
        )

    # The task and what it owns

    async def inline(self, key: TaskKey) -> None:
        """A pod that brings its own MemTask along gets it; one whose task is missing is told so."""
        pods = [pod for pod in self._view.pods_of(key) if not pod.meta.leaving]
        if not pods:
            return
        known = self._view.tasks.get(key)
        newest = max(pods, key=lambda pod: (pod.meta.created, pod.meta.name))
        if known is None and not newest.inline and not await self._is_there(key):
            await self._tell_once(
                POD,
                newest.meta,
                "MemTaskMissing",
                f"there is no MemTask/{key.name} in namespace {key.namespace}; create it, or "
                f"annotate the pod with {', '.join(INLINE_NEEDED)}",
            )
        if not newest.inline or (known and not MANAGED_BY.items() <= known[1].labels.items()):
            return
        try:
            wanted = memtask_of(newest, await self._owner(newest))
        except InlineError as error:
            await self._tell_once(POD, newest.meta, "AnnotationInvalid", str(error))
            return
        if known is None or known[0].spec != MemTask.from_api(wanted).spec:
            await self._apply(MEMTASK, key, wanted)

    async def _is_there(self, key: TaskKey) -> bool:
        """Whether a task exists that no watch has shown yet."""
        try:
            self._view.take(MEMTASK, await self._kube.get(MEMTASK, key.namespace, key.name))
        except NotFound:
            return False
        return True

    async def _owner(self, pod: KnownPod) -> Json:
        """Whoever makes the pods: the Deployment of a ReplicaSet, else the controller, else it."""
        owner = pod.meta.owner
        if owner is None:
            [reference] = owned_by("Pod", pod.meta, "v1")
            return reference
        if owner["kind"] == "ReplicaSet":
            try:
                above = await self._kube.get(REPLICASET, pod.meta.namespace, owner["name"])
            except NotFound:
                return dict(owner)
            references = above["metadata"].get("ownerReferences") or ()
            owner = next((o for o in references if o.get("controller")), owner)
        return dict(owner)

    async def belongings(self, key: TaskKey) -> None:
        """The finalizer, the claim template and the Deployment of a task."""
        known = self._view.tasks.get(key)
        if known is None:
            return
        task, meta = known
        if meta.leaving:
            await self._empty(task, meta)
            return
        if FINALIZER not in meta.finalizers:
            await self._finalizers(MEMTASK, meta, meta.finalizers | {FINALIZER})
        template = self._view.templates.get(key)
        if template is None:
            await self._create(TEMPLATE, claim_template(meta), meta)
        if task.spec.template is not None:
            await self._deploy(task, meta)

    async def _deploy(self, task: MemTask, meta: Meta) -> None:
        key = (meta.namespace, meta.name)
        generation = f"{meta.uid}/{task.metadata.generation}"
        made = self._view.deployments.get(key)
        if made is None or made.meta.annotations.get("tierline.io/generation") != generation:
            manifest = deployment(task, meta)
            manifest["metadata"]["annotations"] = {"tierline.io/generation": generation}
            await self._apply(DEPLOYMENT, key, manifest)

    async def _empty(self, task: MemTask, meta: Meta) -> None:
        """Let the pods of a leaving task's Deployment go: their claims keep the task, and it them.

        The Deployment itself goes with the task.
        """
        key = (meta.namespace, meta.name)
        generation = f"{meta.uid}/leaving"
        made = self._view.deployments.get(key)
        if (
            task.spec.template is not None
            and made is not None
            and made.meta.annotations.get("tierline.io/generation") != generation
        ):
            manifest = deployment(task, meta)
            manifest["metadata"]["annotations"] = {"tierline.io/generation": generation}
            manifest["spec"]["replicas"] = 0
            await self._apply(DEPLOYMENT, key, manifest)

    # Claims and pods

    async def notes(self, key: TaskKey) -> None:
        """Plans of pods that are allocated already, as they are now."""
        for known in self._view.claims_of(key):
            seat = self._view.fleet.seat_of(known.claim.key)
            if seat is not None and known.claim.place is not None and not known.meta.leaving:
                await self._note(known)

    async def _note(self, known: KnownClaim) -> KnownClaim:
        """Write plan and standing into a claim; returns it as it is then."""
        seat = self._view.fleet.seat_of(known.claim.key)
        of = self._view.tasks.get(known.claim.task_key)
        patch = notes_patch(known, seat, self._granted(of[0])) if seat and of else None
        if patch is not None:
            await self._patch(CLAIM, known.claim.key, patch)
        return self._view.claims.get(known.claim.key, known)

    def _granted(self, task: MemTask) -> MemTaskSpec:
        """The spec by which a task is planned, which is not its newest when that was refused."""
        verdict = self._view.fleet.verdict(TaskKey(task.domain, task.name))
        return (verdict.granted if verdict else None) or task.spec

    async def allocate(self, key: TaskKey) -> None:
        """Allocate the claims that have a seat and no allocation."""
        for known in self._view.claims_of(key):
            seat = self._view.fleet.seat_of(known.claim.key)
            if seat is None or known.claim.place is not None or known.meta.leaving:
                continue
            if seat.standing == Standing.PROFILING and await self._is_measured(key):
                raise Stale(CLAIM, known.claim.key)
            noted = await self._note(known)
            patch = allocation_patch(noted, seat, _now().strftime("%Y-%m-%dT%H:%M:%SZ"))
            await self._patch(CLAIM, known.claim.key, patch, subresource="status")
            metrics.ALLOCATIONS.inc()
            pod = self._view.pods.get((key.namespace, known.claim.pod))
            if pod is not None:
                place = f"MemTask/{key.name} has its place on {seat.place}"
                await self._tell(POD, pod.meta, "Placed", place, normal=True)
            log.info(
                "allocated",
                extra={
                    "task": key,
                    "claim": known.claim.key.name,
                    "pod": known.claim.pod,
                    "node": seat.place.node,
                    "device": seat.place.device,
                },
            )

    async def _is_measured(self, key: TaskKey) -> bool:
        """Whether there is a profile that no watch has shown yet; being measured costs a device."""
        task, _ = self._view.tasks[key]
        name = task.spec.profile or key.name
        try:
            self._view.take(MEMPROFILE, await self._kube.get(MEMPROFILE, key.namespace, name))
        except NotFound:
            return False
        return True

    async def open_gates(self, key: TaskKey) -> None:
        """Let the scheduler have the pods whose claims are allocated; tell the others why not."""
        placed = {
            known.claim.pod
            for known in self._view.claims_of(key)
            if known.claim.place is not None and not known.meta.leaving
        }
        for pod in self._view.pods_of(key):
            if pod.gate is not None and pod.meta.name in placed and not pod.meta.leaving:
                name = (pod.meta.namespace, pod.meta.name)
                await self._patch(POD, name, gate_removal(pod), how=JSON_PATCH)
            elif pod.gate is not None and not pod.meta.leaving:
                await self._tell_waiting(key, pod)

    async def _tell_waiting(self, key: TaskKey, pod: KnownPod) -> None:
        verdict = self._view.fleet.verdict(key)
        if verdict is None or verdict.admitted.reason == Reason.PENDING:
            return
        said = verdict.admitted
        if said.status == ConditionStatus.FALSE:
            await self._tell_once(
                *(POD, pod.meta, said.reason, f"waits for MemTask/{key.name}: {said.message}"),
                topic=said.reason,  # figures change often
            )

    # Status

    async def status(self, key: TaskKey) -> None:
        """What is said of the task."""
        known = self._view.tasks.get(key)
        verdict = self._view.fleet.verdict(key)
        if known is None or verdict is None:
            return
        task, meta = known
        observed = [c.observed for c in self._view.claims_of(key) if c.observed is not None]
        now = _now()
        status = status_of(task, verdict, self._view.pods_of(key), observed, now)
        if status == task.status:
            return
        body: Json = {
            "apiVersion": MEMTASK.group_version,
            "kind": MEMTASK.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "resourceVersion": meta.version,
            },
            "status": status.to_api(),
        }
        await self._patch(MEMTASK, key, body, how=APPLY, subresource="status")
        if task.status is None and task.metadata.creation_timestamp is not None:
            age = now - task.metadata.creation_timestamp
            metrics.VERDICT_SECONDS.observe(max(0.0, age.total_seconds()))
        await self._tell_changes(meta, task.status, status)

    async def release(self, key: TaskKey) -> None:
        """Let a task go that holds nothing any more."""
        known = self._view.tasks.get(key)
        if known is None:
            return
        _, meta = known
        held = any(claim.claim.place for claim in self._view.claims_of(key))
        if meta.leaving and FINALIZER in meta.finalizers and not held:
            await self._finalizers(MEMTASK, meta, meta.finalizers - {FINALIZER})

    # Events

    async def _tell_changes(
        self, meta: Meta, before: MemTaskStatus | None, now: MemTaskStatus
    ) -> None:
        for kind in _TOLD:
            was = find(before.conditions, kind) if before else None
            is_ = find(now.conditions, kind)
            if is_ is None or is_.status == ConditionStatus.UNKNOWN:
                continue
            good = is_.status == ConditionStatus.TRUE
            if kind == ConditionType.READY and not good:
                continue  # pods come and go, and say themselves why
            if was is None or (was.status, was.reason) != (is_.status, is_.reason):
                await self._tell(MEMTASK, meta, is_.reason, is_.message, normal=good)

    async def _tell_once(
        self, resource: Resource, meta: Meta, reason: str, message: str, *, topic: str = ""
    ) -> None:
        """Write an event unless there was one of this topic, or else of this message."""
        what = (meta.uid, topic or message)
        if what not in self._told:
            self._told.add(what)
            await self._tell(resource, meta, reason, message, normal=False)

    async def _tell(
        self, resource: Resource, meta: Meta, reason: str, message: str, *, normal: bool
    ) -> None:
        """Write an event; it is no part of the truth, so a failure is only logged."""
        reporter = Reporter("tierline.io/operator", self._leadership.identity, "Admission")
        about = resource.reference(
            {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        )
        told = event(reporter, about, reason, message, time.time_ns(), normal=normal)
        log.info(message, extra={"task": f"{meta.namespace}/{meta.name}", "reason": reason})
        try:
            self._leadership.check()
            await self._kube.create(EVENT, told)
        except KubeError as error:
            log.warning("cannot write an event: %s", error)

    # Writes

    async def _finalizers(self, resource: Resource, meta: Meta, wanted: frozenset[str]) -> None:
        body = {
            "metadata": {
                "resourceVersion": meta.version,
                "uid": meta.uid,
                "finalizers": sorted(wanted) or None,
            }
        }
        await self._patch(resource, (meta.namespace, meta.name), body)

    async def _patch(
        self,
        resource: Resource,
        name: tuple[str, str],
        body: Any,
        *,
        how: str = MERGE,
        subresource: str = "",
    ) -> None:
        self._leadership.check()
        try:
            answer = await self._kube.patch(resource, *name, body, how=how, subresource=subresource)
        except (Conflict, NotFound) as error:
            raise Stale(resource, (name[0], name[1])) from error
        except Refused as error:
            if how == JSON_PATCH:  # a test in the patch failed
                raise Stale(resource, (name[0], name[1])) from error
            raise
        self._view.take(resource, answer)

    async def _apply(self, resource: Resource, name: tuple[str, str], body: Json) -> None:
        await self._patch(resource, name, body, how=APPLY)

    async def _create(self, resource: Resource, body: Json, task: Meta) -> None:
        self._leadership.check()
        name = (body["metadata"]["namespace"], body["metadata"]["name"])
        try:
            answer = await self._kube.create(resource, body)
        except Conflict:
            await self._explain_taken(resource, name, task)
        self._view.take(resource, answer)

    async def _explain_taken(self, resource: Resource, name: Name, task: Meta) -> NoReturn:
        """The name is taken; unless by what an earlier leader made, only a person can help."""
        there = await self._kube.get(resource, *name)
        if MANAGED_BY.items() <= (there["metadata"].get("labels") or {}).items():
            raise Stale(resource, name)
        taken = f"{resource.kind}/{name[1]} exists and is not Tierline's; rename it or the MemTask"
        await self._tell_once(MEMTASK, task, "NameTaken", taken)
        raise Refused(f"create {resource.kind}/{name[1]}", 409, "NameTaken", taken)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
