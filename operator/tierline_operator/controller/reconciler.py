"""Reconciles one task: step by step, what is in the cluster becomes what was decided.

Each step compares what is seen with what should be and writes the difference, if any: a step may be
repeated, left out or cut off at any point. The order matters across tasks: a pod that lost its
place or its guarantee is told so (`notes`) before a claim is allocated that needs the room
(`allocate`), and a pod leaves its gate only when its claim is seen allocated (`open_gates`): its
own, by the pod's uid, as one of the same name may have been there before it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from tierline_api.objects.conditions import Condition, ConditionStatus, ConditionType, Reason
from tierline_api.objects.memprofile import MemProfileStatus
from tierline_api.objects.memquota import MemQuotaStatus
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.optin import FINALIZER, INLINE_NEEDED, Standing
from tierline_kube.client import APPLY, JSON_PATCH, Kube
from tierline_kube.errors import Conflict, NotFound, Refused
from tierline_kube.resource import (
    MEMNODE,
    MEMPROFILE,
    MEMTASK,
    REPLICASET,
    Json,
    Resource,
)
from tierline_operator import metrics
from tierline_operator.cluster.decode import KnownClaim, KnownPod, Meta
from tierline_operator.cluster.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE
from tierline_operator.cluster.state import Name, View
from tierline_operator.controller.events import USUAL, Telling
from tierline_operator.controller.hindrances import Hindrances
from tierline_operator.controller.inline import InlineError, memtask_of
from tierline_operator.controller.manifests import (
    MANAGED_BY,
    allocation_patch,
    claim_template,
    deployment,
    gate_removal,
    notes_patch,
    notes_withdrawal,
    owned_by,
    says,
)
from tierline_operator.controller.status import status_of
from tierline_operator.controller.writer import Stale, Writes
from tierline_operator.leadership.lease import Leadership
from tierline_operator.placement.books.seats import ClaimKey, TaskKey
from tierline_operator.placement.needs.fitting import listed

log = logging.getLogger(__name__)
_MOST_OWNERS: Final = 64
_REMEMBERED: Final = 10_000


class Later(Exception):  # noqa: N818 - a state, not a mistake
    """A step left something for later that no other step needs; the message says what and why."""


class Reconciler:
    """The steps, in their order."""

    def __init__(self, kube: Kube, leadership: Leadership, view: View) -> None:
        self._kube = kube
        self._view = view
        self._writes = Writes(kube, leadership, view)
        self.telling = Telling(kube, leadership)
        self.hindrances = Hindrances()
        self._above: dict[str, Json] = {}
        """Of ReplicaSets, by uid: what owns them."""
        self._applied: dict[TaskKey, tuple[str, int]] = {}
        """Of each Deployment, by which spec it was applied, and which generation that made."""
        self.steps: tuple[Callable[[TaskKey], Awaitable[None]], ...] = (
            self.inline,
            self.belongings,
            self.notes,
            self.allocate,
            self.open_gates,
            self.status,
            self.release,
        )

    async def silence(self, node: str) -> None:
        """Say in a MemNode that its agent gives no sign of life; its next one takes that back."""
        condition = Condition(
            type=ConditionType.READY,
            status=ConditionStatus.UNKNOWN,
            reason=Reason.AGENT_SILENT.value,
            message=f"{self._view.pulses.unfit(node)}; see its pod and the node",
            last_transition_time=_now(),
        )
        status = {"conditions": [condition.to_api()]}
        name = {"metadata": {"name": node}, "status": status}
        body = {"apiVersion": MEMNODE.group_version, "kind": MEMNODE.kind, **name}
        await self._writes.patch(MEMNODE, ("", node), body, how=APPLY, subresource="status")

    async def show(
        self, kind: Resource, name: Name, status: MemQuotaStatus | MemProfileStatus
    ) -> None:
        """Say in the status of a MemQuota or a MemProfile what people want to know of it."""
        metadata = {"namespace": name[0], "name": name[1]}
        called = {"apiVersion": kind.group_version, "kind": kind.kind}
        body: Json = {**called, "metadata": metadata, "status": status.to_api()}
        await self._writes.patch(kind, name, body, how=APPLY, subresource="status")

    # The task and what it owns

    async def inline(self, key: TaskKey) -> None:
        """A pod that brings its own MemTask along gets it; one whose task is missing is told so."""
        pods = [pod for pod in self._view.pods_of(key) if not pod.meta.leaving]
        if not pods:
            self.hindrances.over(key, MEMTASK.kind)
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
            self.hindrances.over(key, MEMTASK.kind)
            return
        if known is not None and known[1].leaving:
            return
        owners = await self._owners(pods)
        try:
            wanted = memtask_of(newest, owners.values())
        except InlineError as error:
            await self.telling.once(key, POD, newest.meta, "AnnotationInvalid", str(error))
            self.hindrances.note(key, MEMTASK.kind, f"pod {newest.meta.name}: {error}")
            return
        if (
            known is None
            or not owners.keys() <= known[1].owners
            or known[0].spec != MemTask.from_api(wanted).spec
        ):
            fix = "correct the pod's annotations, or what forbids it (a quota, a policy)"
            await self._apply(MEMTASK, wanted, POD, newest.meta, key, fix, str(newest.inline))
        self.hindrances.over(key, MEMTASK.kind)

    async def _apply(
        self,
        resource: Resource,
        body: Json,
        source: Resource,
        meta: Meta,
        key: TaskKey,
        fix: str,
        tried: str,
    ) -> None:
        """Apply the object of a task's name that people describe in `source`, with `meta`.

        What the API server refuses is told there, once of what was `tried`, and raises Later: pods
        that are there are not to wait for it.
        """
        try:
            await self._writes.apply(resource, key, body)
        except Refused as error:
            refused = (
                f"{resource.kind}/{key.name} is refused; {fix}; it is tried again. The API server "
                f"says: {error.message}"
            )
            self.hindrances.note(key, resource.kind, refused)
            await self.telling.once(
                *(key, source, meta, f"{resource.kind}Refused", refused),
                topic=f"{tried} {error.reason}",  # the message may have figures that change often
            )
            raise Later(str(error)) from error

    async def _is_there(self, key: TaskKey) -> bool:
        """Whether a task exists that no watch has shown yet."""
        try:
            self._view.take(MEMTASK, await self._kube.get(MEMTASK, key.namespace, key.name))
        except NotFound:
            return False
        return True

    async def _owners(self, pods: Iterable[KnownPod]) -> dict[str, Json]:
        """The makers of these pods, by uid: of the newest pods, if they are of many."""
        owners: dict[str, Json] = {}
        newest = sorted(pods, key=lambda pod: (pod.meta.created, pod.meta.name), reverse=True)
        for pod in newest:
            owner = await self._owner(pod)
            owners[owner["uid"]] = owner
            if len(owners) == _MOST_OWNERS:
                break
        return owners

    async def _owner(self, pod: KnownPod) -> Json:
        """The maker of the pods: the Deployment of a ReplicaSet, else the controller, else it."""
        owner = pod.meta.owner
        if owner is None:
            [reference] = owned_by("Pod", pod.meta, "v1")
            return reference
        if owner["kind"] != "ReplicaSet":
            return dict(owner)
        if owner["uid"] not in self._above:
            try:
                above = await self._kube.get(REPLICASET, pod.meta.namespace, owner["name"])
            except NotFound:
                return dict(owner)
            references = above["metadata"].get("ownerReferences") or ()
            if len(self._above) >= _REMEMBERED:
                self._above.clear()
            top = next((o for o in references if o.get("controller")), owner)
            self._above[owner["uid"]] = dict(top)
        return dict(self._above[owner["uid"]])

    async def belongings(self, key: TaskKey) -> None:
        """The claim template and the Deployment of a task."""
        known = self._view.tasks.get(key)
        if known is None:
            return
        task, meta = known
        if meta.leaving:
            self.hindrances.forget(key)
            await self._empty(meta)
            return
        template = self._view.templates.get(key)
        if template is None:
            await self._make_template(key, meta)
        self.hindrances.over(key, TEMPLATE.kind)
        if task.spec.template is not None:
            await self._deploy(task, meta)
        else:
            await self._empty(meta)
        self.hindrances.over(key, DEPLOYMENT.kind)

    async def _make_template(self, key: TaskKey, meta: Meta) -> None:
        try:
            await self._writes.create(TEMPLATE, claim_template(meta))
        except Conflict as error:
            # Unless by what an earlier leader made, only a person can help.
            there = await self._kube.get(TEMPLATE, *key)
            if MANAGED_BY.items() <= (there["metadata"].get("labels") or {}).items():
                raise Stale(TEMPLATE, key) from error
            taken = (
                f"{TEMPLATE.kind}/{key.name} exists and is not Tierline's; rename it or the "
                "MemTask, and delete the pods that were made meanwhile"
            )
            self.hindrances.note(key, TEMPLATE.kind, taken)
            await self.telling.once(key, MEMTASK, meta, "NameTaken", taken)
            raise Refused(f"create {TEMPLATE.kind}/{key.name}", 409, "NameTaken", taken) from error

    async def _deploy(self, task: MemTask, meta: Meta) -> None:
        key = TaskKey(meta.namespace, meta.name)
        generation = f"{meta.uid}/{task.metadata.generation}"
        made = self._view.deployments.get(key)
        manifest = deployment(task, meta)
        manifest["metadata"]["annotations"] = {"tierline.io/generation": generation}
        if made is not None and made.meta.annotations.get("tierline.io/generation") == generation:
            if self._applied.get(key) == (generation, made.generation):
                return
            if not says(made.spec, manifest["spec"]):
                await self._put_back(key, meta, manifest)
            self._note_applied(key, generation)
            return
        await self._apply_deployment(manifest, meta)
        self._note_applied(key, generation)

    async def _put_back(self, key: TaskKey, meta: Meta, manifest: Json) -> None:
        """Somebody changed the Deployment: what its MemTask says holds.

        Fields of which the MemTask says nothing stay as they are; they are no reason to apply it
        again and again.
        """
        await self._apply_deployment(manifest, meta)
        await self.telling.once(
            *(key, MEMTASK, meta, "DeploymentPutBack"),
            f"Deployment/{key.name} was changed, and is as this MemTask says again; change the "
            "MemTask, or scale it (kubectl scale memtask, an autoscaler with it as its target)",
        )

    def _note_applied(self, key: TaskKey, generation: str) -> None:
        made = self._view.deployments.get(key)
        if made is not None:
            self._applied[key] = generation, made.generation

    async def _apply_deployment(self, manifest: Json, meta: Meta) -> None:
        fix = (
            "correct the MemTask's template, or what forbids it (a quota, a policy, a Deployment "
            "of this name that is not Tierline's)"
        )
        tried = manifest["metadata"]["annotations"]["tierline.io/generation"]
        key = TaskKey(meta.namespace, meta.name)
        await self._apply(DEPLOYMENT, manifest, MEMTASK, meta, key, fix, tried)

    async def _empty(self, meta: Meta) -> None:
        """Let the pods go of the Deployment of a task that leaves, or has no template any more.

        The claims of its pods keep a task that leaves, and it them. The Deployment goes with it.
        """
        key = TaskKey(meta.namespace, meta.name)
        emptied = {"tierline.io/generation": f"{meta.uid}/empty"}
        made = self._view.deployments.get(key)
        if (
            made is not None
            and made.meta.owner is not None
            and made.meta.owner["uid"] == meta.uid
            and not emptied.items() <= made.meta.annotations.items()
        ):
            metadata = {"resourceVersion": made.meta.version, "annotations": emptied}
            body = {"metadata": metadata, "spec": {"replicas": 0}}
            await self._writes.patch(DEPLOYMENT, key, body)

    # Claims and pods

    async def notes(self, key: TaskKey) -> None:
        """Plans of pods that are allocated already, as they are now.

        Not where the device is gone: of a MemNode that is deleted and reported again the programs
        run on, unless their agent reads that they are lost.
        """
        fleet = self._view.fleet
        for known in self._view.claims_of(key):
            place = known.claim.place
            if place is None or known.meta.leaving or not fleet.shows(place):
                continue
            if fleet.seat_of(known.claim.key) is not None:
                await self._note(known)

    async def _note(self, known: KnownClaim) -> KnownClaim:
        """Write plan and standing into a claim; returns it as it is then."""
        seat = self._view.fleet.seat_of(known.claim.key)
        spec = self._view.fleet.spec_of(known.claim.task_key)
        patch = notes_patch(known, seat, spec) if seat and spec else None
        if patch is not None:
            await self._writes.patch(CLAIM, known.claim.key, patch)
        return self._view.claims.get(known.claim.key, known)

    async def allocate(self, key: TaskKey) -> None:
        """Allocate the claims that have a seat and no allocation."""
        given_up: ClaimKey | None = None
        for known in self._view.claims_of(key):
            seat = self._view.fleet.seat_of(known.claim.key)
            if seat is None or known.claim.place is not None or known.meta.leaving:
                continue
            if seat.standing == Standing.LOST:
                await self._give_up(known)
                given_up = known.claim.key
                continue
            if seat.standing == Standing.PROFILING and await self._is_measured(key):
                raise Stale(CLAIM, known.claim.key)
            await self._keep(key)
            noted = await self._note(known)
            patch = allocation_patch(noted, seat, _now().strftime("%Y-%m-%dT%H:%M:%SZ"))
            await self._writes.patch(CLAIM, known.claim.key, patch, subresource="status")
            metrics.ALLOCATIONS.inc()
            pod = self._view.pods.get((key.namespace, known.claim.pod))
            if pod is not None and known.is_of(pod) and not known.claim.returned:
                place = f"MemTask/{key.name} has its place on {seat.place}"
                await self.telling.once(key, POD, pod.meta, "Placed", place, normal=True)
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
        if given_up is not None:
            raise Stale(CLAIM, given_up)

    async def _give_up(self, known: KnownClaim) -> None:
        """Have a claim placed again that lost its seat before it was seen allocated there.

        An allocation that got no answer may still be carried out, and others be given its room by
        then. So the claim is changed first: what is under way is refused from then on.
        """
        await self._writes.patch(CLAIM, known.claim.key, notes_withdrawal(known))
        self._view.fleet.give_up(known.claim.key)

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
        claims = self._view.claims_of(key)
        for pod in self._view.pods_of(key):
            if pod.gate is not None and is_placed(pod, claims) and not pod.meta.leaving:
                name = (pod.meta.namespace, pod.meta.name)
                await self._writes.patch(POD, name, gate_removal(pod), how=JSON_PATCH)
            elif pod.gate is not None and not pod.meta.leaving:
                await self._tell_waiting(key, pod)
            elif pod.phase == "Pending" and not pod.meta.leaving:
                await self._tell_returned(key, pod, claims)

    async def _tell_returned(
        self, key: TaskKey, pod: KnownPod, claims: Iterable[KnownClaim]
    ) -> None:
        """Tell a pod that has left its gate where kube-scheduler did not want it."""
        for known in claims:
            claim = known.claim
            if known.is_of(pod) and claim.returned:
                unfit = listed(dict.fromkeys(claim.returned, claim.why_returned))
                reason = Reason.NOT_SCHEDULABLE
                await self.telling.series(
                    *(key, POD, pod.meta, reason, unfit),
                    topic=reason,  # one, from whichever node it was given back
                    times=claim.times_returned,
                )

    async def _tell_waiting(self, key: TaskKey, pod: KnownPod) -> None:
        verdict = self._view.fleet.verdict(key)
        if verdict is None or verdict.admitted.reason == Reason.PENDING:
            return
        said = verdict.admitted
        if said.status == ConditionStatus.FALSE:
            await self.telling.once(
                *(key, POD, pod.meta, said.reason, f"waits for MemTask/{key.name}: {said.message}"),
                topic=said.reason,  # figures change often
                normal=said.reason in USUAL,
            )

    # Status

    async def status(self, key: TaskKey) -> None:
        """The verdict on the task."""
        known = self._view.tasks.get(key)
        verdict = self._view.fleet.verdict(key)
        if known is None or verdict is None:
            return
        if any(seat.standing == Standing.LOST and not seat.bound for seat in verdict.seats):
            return  # it was given up just now: where it goes instead is decided next
        task, meta = known
        observed = [c.observed for c in self._view.claims_of(key) if c.observed is not None]
        now = _now()
        made = self._view.deployments.get(key)
        status = status_of(
            *(task, verdict, self._view.pods_of(key), observed, now),
            failure=made.failure if made else "",
            hindered=self.hindrances.told(key),
            unmade=self.hindrances.holds(key, TEMPLATE.kind, DEPLOYMENT.kind),
            silent=self._silent(seat.place.node for seat in verdict.seats),
            stalled_s=self._view.stalled.limit_s if key in self._view.stalled.over else None,
        )
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

    def _silent(self, nodes: Iterable[str]) -> str:
        """Where no pod can start, of these nodes."""
        unfit = {node: self._view.pulses.unfit(node) for node in nodes}
        return listed({node: why for node, why in unfit.items() if why})

    async def release(self, key: TaskKey) -> None:
        """Let a task go that holds nothing any more, and forget what was told of what is gone."""
        known = self._view.tasks.get(key)
        there = {pod.meta.uid for pod in self._view.pods_of(key)}
        self.telling.told.keep(key, there | {known[1].uid} if known else there)
        if known is None:
            self._applied.pop(key, None)
            self.hindrances.forget(key)
            return
        _, meta = known
        held = any(claim.claim.place for claim in self._view.claims_of(key))
        if meta.leaving and FINALIZER in meta.finalizers and not held:
            await self._writes.finalizers(MEMTASK, meta, meta.finalizers - {FINALIZER})


def is_placed(pod: KnownPod, claims: Iterable[KnownClaim]) -> bool:
    """Whether a claim of a pod is allocated: its own, not one of a pod that had its name."""
    return any(
        known.is_of(pod) and known.claim.place is not None and not known.meta.leaving
        for known in claims
    )


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
