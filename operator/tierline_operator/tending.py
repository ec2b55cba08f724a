"""What belongs to one task in the cluster, step by step brought to where it should be.

Each step compares what is seen with what should be and writes the difference, if any: a step may be
repeated, left out or cut off at any point. The order matters across tasks: who lost its place or
its guarantee is told so (`notes`) before a claim is allocated that needs the room (`allocate`), and
a pod leaves its gate only when its claim is seen allocated (`open_gates`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from tierline_api.conditions import ConditionStatus, Reason
from tierline_api.memtask import MemTask, MemTaskSpec
from tierline_api.optin import INLINE_NEEDED
from tierline_kube.client import APPLY, JSON_PATCH, Kube
from tierline_kube.errors import Conflict, NotFound, Refused
from tierline_kube.resource import MEMPROFILE, MEMTASK, REPLICASET, Json
from tierline_operator import metrics
from tierline_operator.inline import InlineError, memtask_of
from tierline_operator.leader import Leadership
from tierline_operator.placement.seats import Standing, TaskKey
from tierline_operator.reading import KnownClaim, KnownPod, Meta
from tierline_operator.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE
from tierline_operator.status import status_of
from tierline_operator.telling import Telling
from tierline_operator.view import View
from tierline_operator.writes import Stale, Writes
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


class Tending:
    """The steps, in their order."""

    def __init__(self, kube: Kube, leadership: Leadership, view: View) -> None:
        self._kube = kube
        self._view = view
        self._writes = Writes(kube, leadership, view)
        self.telling = Telling(kube, leadership)
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
            await self.telling.once(
                key,
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
            await self.telling.once(key, POD, newest.meta, "AnnotationInvalid", str(error))
            return
        if known is None or known[0].spec != MemTask.from_api(wanted).spec:
            await self._writes.apply(MEMTASK, key, wanted)

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
        """The claim template and the Deployment of a task."""
        known = self._view.tasks.get(key)
        if known is None:
            return
        task, meta = known
        if meta.leaving:
            await self._empty(task, meta)
            return
        template = self._view.templates.get(key)
        if template is None:
            await self._make_template(key, meta)
        if task.spec.template is not None:
            await self._deploy(task, meta)

    async def _make_template(self, key: TaskKey, meta: Meta) -> None:
        try:
            await self._writes.create(TEMPLATE, claim_template(meta))
        except Conflict as error:
            # Unless by what an earlier leader made, only a person can help.
            there = await self._kube.get(TEMPLATE, *key)
            if MANAGED_BY.items() <= (there["metadata"].get("labels") or {}).items():
                raise Stale(TEMPLATE, key) from error
            taken = (
                f"{TEMPLATE.kind}/{key.name} exists and is not Tierline's; rename it or the MemTask"
            )
            await self.telling.once(key, MEMTASK, meta, "NameTaken", taken)
            raise Refused(f"create {TEMPLATE.kind}/{key.name}", 409, "NameTaken", taken) from error

    async def _deploy(self, task: MemTask, meta: Meta) -> None:
        key = (meta.namespace, meta.name)
        generation = f"{meta.uid}/{task.metadata.generation}"
        made = self._view.deployments.get(key)
        if made is None or made.meta.annotations.get("tierline.io/generation") != generation:
            manifest = deployment(task, meta)
            manifest["metadata"]["annotations"] = {"tierline.io/generation": generation}
            await self._writes.apply(DEPLOYMENT, key, manifest)

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
            await self._writes.apply(DEPLOYMENT, key, manifest)

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
            await self._writes.patch(CLAIM, known.claim.key, patch)
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
            await self._keep(key)
            noted = await self._note(known)
            patch = allocation_patch(noted, seat, _now().strftime("%Y-%m-%dT%H:%M:%SZ"))
            await self._writes.patch(CLAIM, known.claim.key, patch, subresource="status")
            metrics.ALLOCATIONS.inc()
            pod = self._view.pods.get((key.namespace, known.claim.pod))
            if pod is not None:
                place = f"MemTask/{key.name} has its place on {seat.place}"
                await self.telling.tell(POD, pod.meta, "Placed", place, normal=True)
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

    async def _keep(self, key: TaskKey) -> None:
        """From its first allocated claim on, a task stays until none is left."""
        _, meta = self._view.tasks[key]
        if meta.leaving:
            raise Stale(MEMTASK, key)
        if FINALIZER not in meta.finalizers:
            await self._writes.finalizers(MEMTASK, meta, meta.finalizers | {FINALIZER})

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
                await self._writes.patch(POD, name, gate_removal(pod), how=JSON_PATCH)
            elif pod.gate is not None and not pod.meta.leaving:
                await self._tell_waiting(key, pod)

    async def _tell_waiting(self, key: TaskKey, pod: KnownPod) -> None:
        verdict = self._view.fleet.verdict(key)
        if verdict is None or verdict.admitted.reason == Reason.PENDING:
            return
        said = verdict.admitted
        if said.status == ConditionStatus.FALSE:
            await self.telling.once(
                *(key, POD, pod.meta, said.reason, f"waits for MemTask/{key.name}: {said.message}"),
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
        await self._writes.patch(MEMTASK, key, body, how=APPLY, subresource="status")
        if task.status is None and task.metadata.creation_timestamp is not None:
            age = now - task.metadata.creation_timestamp
            metrics.VERDICT_SECONDS.observe(max(0.0, age.total_seconds()))
        await self.telling.changes(meta, task.status, status)

    async def release(self, key: TaskKey) -> None:
        """Let a task go that holds nothing any more, and forget what was told of what is gone."""
        known = self._view.tasks.get(key)
        there = {pod.meta.uid for pod in self._view.pods_of(key)}
        self.telling.told.keep(key, there | {known[1].uid} if known else there)
        if known is None:
            return
        _, meta = known
        held = any(claim.claim.place for claim in self._view.claims_of(key))
        if meta.leaving and FINALIZER in meta.finalizers and not held:
            await self._writes.finalizers(MEMTASK, meta, meta.finalizers - {FINALIZER})


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
