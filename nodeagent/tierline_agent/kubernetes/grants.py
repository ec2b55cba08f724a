"""The grant of a claim to a pod on this node: read, judged, never completed by guesses.

Pure. Invariant: there is a `Grant` only for a claim whose device of this driver lies on this node
and in which the operator has noted terms and standing; everything else is a `NotGranted` with a
sentence for the user. Who may allocate claims of this driver is a matter of RBAC; that a claim was
allocated by the operator shows in the notes, which are written before the allocation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from tierline_agent.errors import AgentError
from tierline_agent.registration import Preemption, Registration
from tierline_api.objects.memtask_status import Observed
from tierline_api.objects.optin import DRIVER, PLAN, STANDING, TASK, TERMS, Standing
from tierline_api.objects.plan import Plan
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.terms import Terms
from tierline_kube.resource import Json

_GRANTED: Final = {one.value: one for one in Standing if one is not Standing.MEASURED}
_WITH_A_LEASE: Final = {Standing.PLANNED, Standing.DEMOTED, Standing.PROFILING}
"""If they have a plan."""
_PLANNED: Final = {Standing.PLANNED, Standing.DEMOTED}


class NotGranted(AgentError):  # noqa: N818 - what it is
    """The claim grants nothing here; the sentence says why and what to do."""


@dataclass(frozen=True)
class Grant:
    """The grant of one claim to one pod."""

    namespace: str
    claim: str
    uid: str
    task: str
    """The MemTask."""
    device: str
    """A device of this node."""
    pool: str
    requests: tuple[str, ...]
    share_id: str | None
    standing: Standing
    terms: Terms
    plan: Plan | None
    """None while it is measured alone; next to others it has one for its limit."""
    observed: Observed | None
    """The observations of it that were reported last."""

    @property
    def registration(self) -> Registration | None:
        """The registration for the agent; None for a pod that gets no lease."""
        if self.plan is None or self.standing not in _WITH_A_LEASE:
            return None
        realtime = self.terms.realtime
        guaranteed = self.standing is Standing.PLANNED
        criticality = realtime.criticality if guaranteed else Criticality.BEST_EFFORT
        return Registration(
            name=self.uid,
            memtask=self.task,
            domain=self.namespace,
            period_ns=round(realtime.period_s * 1e9),
            deadline_ns=round(realtime.deadline_s * 1e9),
            criticality=criticality.value,
            training=self.terms.training is not None,
            device=self.device,
            preemption=_preemption(self.plan),
            job_limit_ns=self._job_limit_ns,
            plan=self.plan,
        )

    @property
    def planned(self) -> bool:
        """Whether it runs by a plan of its own."""
        return self.standing in _PLANNED

    @property
    def measured_among_others(self) -> bool:
        """Whether it is measured next to tasks with plans, job by job."""
        return self.standing is Standing.PROFILING and self.plan is not None

    @property
    def _job_limit_ns(self) -> int | None:
        limit_s = self.terms.realtime.measuring_limit_s
        return round(limit_s * 1e9) if self.measured_among_others and limit_s is not None else None


def _preemption(plan: Plan) -> Preemption | None:
    granted = plan.preemption
    if granted is None:
        return None
    return Preemption(
        scheduling=granted.scheduling.value,
        layer_ns=max(1, round(granted.layer_s * 1e9)),
        penalty_ns=round(granted.penalty_s * 1e9),
        parked_bytes=granted.parked_bytes,
    )


def is_of(claim: Mapping[str, Any], node: str) -> bool:
    """Whether a claim has a device of this driver on `node`."""
    return any(result["pool"] == node for result in _results(claim))


def grant_of(claim: Mapping[str, Any], node: str) -> Grant:
    """The grants of a claim on `node`.

    Raises:
        NotGranted: nothing, or not by the operator.
    """
    metadata = claim["metadata"]
    named = f"claim {metadata['namespace']}/{metadata['name']}"
    results = [result for result in _results(claim) if result["pool"] == node]
    if not results:
        raise NotGranted(f"{named} has no device of {DRIVER} on node {node}")
    notes = metadata.get("annotations") or {}
    task = (metadata.get("labels") or {}).get(TASK, "")
    if not task or STANDING not in notes or TERMS not in notes:
        raise NotGranted(
            f"{named} was not allocated by Tierline's operator; do not write claims for {DRIVER} "
            f"yourself: annotate the pod with {TASK}: NAME of a MemTask, and leave out its claim"
        )
    devices = {result["device"] for result in results}
    if len(devices) > 1:
        raise NotGranted(
            f"{named} has several devices ({', '.join(sorted(devices))}); one is enough"
        )
    try:
        plan = Plan.from_api(json.loads(notes[PLAN])) if PLAN in notes else None
        standing = _GRANTED[notes[STANDING]]
        terms = Terms.from_stored(json.loads(notes[TERMS]))
    except (ValidationError, ValueError, KeyError) as error:
        raise NotGranted(
            f"{named} has notes that this agent cannot read ({error}); "
            "are operator and agent of one release?"
        ) from error
    if standing in _PLANNED and plan is None:
        raise NotGranted(f"{named} is {standing} and has no plan yet; the operator writes it soon")
    return Grant(
        namespace=metadata["namespace"],
        claim=metadata["name"],
        uid=metadata["uid"],
        task=task,
        device=devices.pop(),
        pool=node,
        requests=tuple(result["request"] for result in results),
        share_id=results[0].get("shareID"),
        standing=standing,
        terms=terms,
        plan=plan,
        observed=_observed(claim),
    )


def _results(claim: Mapping[str, Any]) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [result for result in results if result.get("driver") == DRIVER]


def _observed(claim: Mapping[str, Any]) -> Observed | None:
    for device in (claim.get("status") or {}).get("devices") or ():
        if device.get("driver") == DRIVER:
            try:
                return Observed.from_api((device.get("data") or {}).get("observed"))
            except ValidationError:
                return None
    return None
