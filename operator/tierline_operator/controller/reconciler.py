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

from tierline_api.objects.conditions import Condition, ConditionStatus, ConditionType, Reason
from tierline_api.objects.memprofile import MemProfileStatus
from tierline_api.objects.memquota import MemQuotaStatus
from tierline_api.objects.optin import FINALIZER, Standing
from tierline_kube.client import APPLY, JSON_PATCH, Kube
from tierline_kube.errors import NotFound
from tierline_kube.resource import (
    MEMNODE,
    MEMPROFILE,
    MEMTASK,
    Json,
    Resource,
)
from tierline_operator import metrics
from tierline_operator.cluster.decode import KnownClaim, KnownPod
from tierline_operator.cluster.resources import CLAIM, DEPLOYMENT, POD, TEMPLATE
from tierline_operator.cluster.state import Name, View
from tierline_operator.controller.applying import Applying
from tierline_operator.controller.belongings import Belongings
from tierline_operator.controller.brought import Brought
from tierline_operator.controller.events import USUAL, Telling
from tierline_operator.controller.hindrances import Hindrances
from tierline_operator.controller.manifests import (
    allocation_patch,
    deallocation,
    gate_removal,
    notes_patch,
    notes_withdrawal,
)
from tierline_operator.controller.status import status_of, without_claim
from tierline_operator.controller.writer import Stale, Writes
from tierline_operator.leadership.lease import Leadership
from tierline_operator.placement.books.seats import ClaimKey, TaskKey
from tierline_operator.placement.needs.fitting import listed

log = logging.getLogger(__name__)


class Reconciler:
    """The steps, in their order."""

    def __init__(self, kube: Kube, leadership: Leadership, view: View) -> None:
        self._kube = kube
        self._view = view
        self._writes = Writes(kube, leadership, view)
        self.telling = Telling(kube, leadership)
        self.hindrances = Hindrances()
        applying = Applying(self._writes, self.telling, self.hindrances)
        self._brought = Brought(kube, view, applying)
        self._belongings = Belongings(kube, view, applying)
        self.steps: tuple[Callable[[TaskKey], Awaitable[None]], ...] = (
            self._brought.bring,
            self._belongings.bring,
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
        for pod in self._view.unclaimed_of(key):
            why = without_claim([pod])
            await self.telling.once(key, POD, pod.meta, Reason.NO_CLAIM, why)
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
            unclaimed=self._view.unclaimed_of(key),
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

    async def _take_back(self, known: KnownClaim) -> None:
        """End the allocation of a claim that no pod has, as Kubernetes does of those with an owner.

        It is not placed again: nothing says whose it is.
        """
        place, key = known.claim.place, known.claim.task_key
        await self._writes.patch(CLAIM, known.claim.key, deallocation(known), subresource="status")
        if key in self._view.tasks:
            said = (
                f"ResourceClaim/{known.claim.key.name} had a place on {place}, and no pod and no "
                f"owner, for {self._view.fleet.rules.keep_free_s / 60:g} min: its place was given "
                "up; delete the claim"
            )
            meta = self._view.tasks[key][1]
            await self.telling.once(key, MEMTASK, meta, "ClaimWithoutPod", said, normal=True)

    def _silent(self, nodes: Iterable[str]) -> str:
        """Where no pod can start, of these nodes."""
        unfit = {node: self._view.pulses.unfit(node) for node in nodes}
        return listed({node: why for node, why in unfit.items() if why})

    async def release(self, key: TaskKey) -> None:
        """Let go what nobody holds any more, and forget what was told of what is gone."""
        for claim in self._view.nobodys_of(key):
            await self._take_back(claim)
        known = self._view.tasks.get(key)
        there = {pod.meta.uid for pod in self._view.pods_of(key)}
        self.telling.told.keep(key, there | {known[1].uid} if known else there)
        if known is None:
            self._belongings.forget(key)
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
