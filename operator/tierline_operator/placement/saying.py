"""The sentences of placement: what is said of a task's profile and of its admission.

Every sentence names the cause and, where something is to be done, the fix. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierline_api.conditions import ConditionStatus, Reason
from tierline_api.memprofile import MemProfile
from tierline_api.memtask_status import Phase
from tierline_operator.placement.entry import Entry
from tierline_operator.placement.ledger import Ledger
from tierline_operator.placement.remeasuring import as_status
from tierline_operator.placement.seats import Seat, Standing
from tierline_operator.placement.verdict import Refusal, Said, Verdict
from tierline_operator.planning.reasons import mebibytes, milliseconds

Matching = Callable[[], Sequence[Ledger]]
"""Finds the devices that a task may run on: looks at all devices, so only where it is said."""
_TRUE, _FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def verdict_of(
    entry: Entry, profile: MemProfile | None, matching: Matching, devices: int
) -> Verdict:
    """What is to be said of a task now; `devices` is how many there are of any kind."""
    admitted = _admitted(entry, profile, matching, devices)
    return Verdict(
        profiled=_profiled(entry, profile),
        admitted=admitted,
        phase=_phase(entry, admitted),
        seats=tuple(entry.seats),
        granted=entry.granted,
        granted_generation=entry.granted_generation,
        remeasured=as_status(entry.longer, profile),
        unproven=next((seat.unproven for seat in entry.seats if seat.unproven), ""),
    )


def _profiled(entry: Entry, profile: MemProfile | None) -> Said:
    if profile is not None:
        return Said(
            _TRUE,
            Reason.PROFILE_FOUND,
            f"MemProfile/{profile.name}: {mebibytes(profile.spec.weight_bytes)} of weights and "
            f"{milliseconds(profile.spec.compute_s)} of compute, measured on "
            f"{profile.spec.device.product}",
        )
    alone = next((seat for seat in entry.seats if seat.standing == Standing.PROFILING), None)
    if alone is not None:
        how = "beside the tasks of" if alone.beside else "alone on"
        return Said(_FALSE, Reason.PROFILING, f"runs {how} {alone.place} to be measured")
    failed = next((seat for seat in entry.seats if seat.standing == Standing.UNMEASURED), None)
    if failed is not None:
        pods = ", ".join(c.pod for c in entry.claims.values() if c.key == failed.claim)
        why = failed.reason or "others waited for the device"
        return Said(
            _FALSE,
            Reason.PROFILING_FAILED,
            f"its pod {pods} ran on {failed.place} to be measured, left no MemProfile/"
            f"{entry.profile_name} in time, and {why}; see the pod's log, "
            "then delete the pod to have it measured again, or apply the profile",
        )
    if entry.refusal:
        return Said(_FALSE, Reason.PROFILE_MISSING, entry.refusal.text)
    runs = "; its pods run on by the plans that they hold" if entry.seats else ""
    missing = f"there is no MemProfile/{entry.profile_name}{runs}"
    return Said(_FALSE, Reason.PROFILE_MISSING, missing)


def _admitted(entry: Entry, profile: MemProfile | None, matching: Matching, devices: int) -> Said:
    if entry.leaving:
        pods = ", ".join(sorted(claim.pod for claim in entry.claims.values() if claim.place))
        what = f"waits until its pods have ended: {pods}" if pods else "nothing runs any more"
        return Said(_FALSE, Reason.BEING_DELETED, f"is being deleted; {what}")
    worse = [s for s in entry.seats if s.standing not in {Standing.PLANNED, Standing.PROFILING}]
    if worse:
        return _worse(worse[0], entry, profile, matching)
    by_plan = all(seat.plan is not None and not seat.measured for seat in entry.seats)
    if profile is None and (entry.missing or not by_plan):
        return Said(_FALSE, Reason.PENDING, "is measured before it is admitted")
    if entry.missing:
        return _waits(entry, matching(), devices)
    if entry.change_refused is not None:
        return Said(
            _TRUE,
            Reason.CHANGE_REFUSED,
            "runs on as it was admitted, because the changed spec does not hold on "
            f"{entry.change_refused.device}: {entry.change_refused.text}",
        )
    return Said(_TRUE, Reason.ADMITTED, _holds(entry))


def _worse(seat: Seat, entry: Entry, profile: MemProfile | None, matching: Matching) -> Said:
    if seat.standing is Standing.UNMEASURED:
        return _profiled(entry, profile)
    if seat.standing is Standing.MEASURED:
        return Said(
            _FALSE,
            Reason.PENDING,
            f"has been measured on {seat.place}, and is planned there when the other tasks that "
            "wait for that have been measured, too",
        )
    gone = seat.place not in {ledger.key for ledger in matching()}
    if gone and seat.demand is None:
        return Said(
            _FALSE,
            Reason.NODE_GONE,
            f"{seat.reason}; delete the pod to have it placed elsewhere",
        )
    then = (
        "it runs in what the others leave"
        if seat.standing == Standing.DEMOTED
        else "it gets no time on the device"
    )
    return Said(
        _FALSE,
        Reason.NO_LONGER_HOLDS,
        f"no longer holds on {seat.place}, {then}: {seat.reason}; delete the pod to have it "
        "placed elsewhere",
    )


def _waits(entry: Entry, matching: Sequence[Ledger], devices: int) -> Said:
    so_far = f"{len(entry.seats)} of {entry.wanted} pods have a place; " if entry.seats else ""
    if not matching:
        wants = entry.task.spec.device
        model = f" whose product name holds {wants.model!r}" if wants.model else ""
        return Said(
            _FALSE,
            Reason.NO_MATCHING_DEVICE,
            f"{so_far}none of {devices} devices is of kind {wants.kind.value}{model}; "
            "change spec.device or add such a node",
        )
    refusal = entry.refusal
    if refusal is None:
        return Said(_FALSE, Reason.PENDING, f"{so_far}waits for its turn to be tried")
    return Said(_FALSE, refusal.reason, so_far + _nearest(refusal, len(matching)))


def _nearest(refusal: Refusal, tried: int) -> str:
    if refusal.device is None or tried == 1:
        return refusal.text
    return f"fits on none of {tried} devices; nearest is {refusal.device}: {refusal.text}"


def _holds(entry: Entry) -> str:
    if not entry.seats:
        return "replicas is 0 and no pod runs: nothing is to be placed"
    first = entry.seats[0]
    more = f" and {len(entry.seats) - 1} more" if len(entry.seats) > 1 else ""
    plan = first.plan
    if plan is None:
        return f"runs on {first.place}{more}"
    promise = (
        f"a job ends at most {milliseconds(plan.response_s)} after its release"
        if plan.response_s is not None
        else "without a guarantee"
    )
    return (
        f"has its place on {first.place}{more}: {promise}; {mebibytes(plan.streamed_bytes)} "
        "are streamed in each job"
    )


def _phase(entry: Entry, admitted: Said) -> Phase:
    if any(seat.standing in {Standing.PROFILING, Standing.MEASURED} for seat in entry.seats):
        return Phase.PROFILING
    if admitted.status == _TRUE:
        return Phase.ADMITTED
    refused = {
        *(Reason.NO_LONGER_HOLDS, Reason.INVALID_SPEC, Reason.NODE_GONE),
        Reason.PROFILING_FAILED,
    }
    return Phase.REFUSED if admitted.reason in refused else Phase.PENDING
