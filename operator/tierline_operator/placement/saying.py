"""The sentences of placement: what is said of a task's profile and of its admission.

Every sentence names the cause and, where something is to be done, the fix. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Final

from tierline_api.objects.conditions import ConditionStatus, Reason
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask_status import Phase
from tierline_api.objects.optin import FINALIZER, Standing
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.seats import Seat, TaskKey
from tierline_operator.placement.books.verdict import Refusal, Said, Verdict
from tierline_operator.placement.entry import Entry
from tierline_operator.placement.needs.fitting import listed
from tierline_operator.placement.needs.remeasuring import as_status
from tierline_operator.planning.refusals.reasons import mebibytes, milliseconds

Matching = Callable[[], Sequence[tuple[Ledger, str]]]
"""Finds the devices of a task's kind and model, each with why no pod that waits can run
on its node ("" if one can): looks at all devices, so only where it is said."""
_LABEL: Final = "[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_NAMED: Final = re.compile(rf"(?<![\w./-])(?P<namespace>{_LABEL})/(?P<name>{_LABEL})(?: \(\d+\))?")
_ANOTHER: Final = "a task of another namespace"
_NOWHERE: Final = {Reason.NO_MATCHING_DEVICE, Reason.NOT_SCHEDULABLE}
_TRUE, _FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def verdict_of(
    entry: Entry, profile: MemProfile | None, matching: Matching, devices: int, kept_s: float
) -> Verdict:
    """The verdict on a task as it is now.

    `devices` is how many there are of any kind, `kept_s` for how long places are kept free.
    """
    given_up = entry.idle and not entry.seats and not entry.missing and not entry.leaving
    admitted = (
        _given_up(kept_s)
        if given_up and entry.task.spec.replicas
        else _admitted(entry, profile, matching, devices)
    )
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


def discreet(verdict: Verdict, namespace: str, tasks: Container[TaskKey]) -> Verdict:
    """The same without the names of tasks in other namespaces, which not everybody may read."""

    def hide(found: re.Match[str]) -> str:
        key = TaskKey(found["namespace"], found["name"])
        return _ANOTHER if key.namespace != namespace and key in tasks else found[0]

    def told(said: Said) -> Said:
        return replace(said, message=_NAMED.sub(hide, said.message))

    return replace(
        verdict,
        profiled=told(verdict.profiled),
        admitted=told(verdict.admitted),
        unproven=_NAMED.sub(hide, verdict.unproven),
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
    returned = {key for key, claim in entry.claims.items() if claim.returned}
    measured = [seat for seat in entry.seats if seat.standing == Standing.PROFILING]
    alone = next((seat for seat in measured if seat.claim not in returned), None)
    if alone is not None:
        how = "together with the tasks of" if alone.sharing else "alone on"
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
    if entry.refusal and entry.refusal.reason not in _NOWHERE:
        return Said(_FALSE, Reason.PROFILE_MISSING, entry.refusal.text)
    runs = "; its pods run on by the plans that they hold" if entry.seats and not measured else ""
    missing = f"there is no MemProfile/{entry.profile_name}{runs}"
    return Said(_FALSE, Reason.PROFILE_MISSING, missing)


def _admitted(entry: Entry, profile: MemProfile | None, matching: Matching, devices: int) -> Said:
    if entry.leaving:
        return Said(_FALSE, Reason.BEING_DELETED, f"is being deleted; {_leaving(entry)}")
    worse = [s for s in entry.seats if s.standing not in {Standing.PLANNED, Standing.PROFILING}]
    if worse:
        return _worse(worse[0], entry, profile, matching)
    if any(claim.returned for claim in entry.claims.values()):
        return _given_back(entry, matching)
    by_plan = all(seat.plan is not None and not seat.measured for seat in entry.seats)
    nowhere = entry.refusal is not None and entry.refusal.reason in _NOWHERE
    if profile is None and not (entry.missing and nowhere) and (entry.missing or not by_plan):
        return Said(_FALSE, Reason.PENDING, "is measured before it is admitted")
    if entry.missing:
        return _waits(entry, matching(), devices)
    return _placed(entry)


def _leaving(entry: Entry) -> str:
    """What a task that is being deleted waits for."""
    pods = ", ".join(sorted(claim.pod for claim in entry.claims.values() if claim.place))
    what = f"waits until its pods have ended: {pods}" if pods else "nothing runs any more"
    others = ", ".join(one for one in entry.task.metadata.finalizers if one != FINALIZER)
    also = f"; others hold it by finalizers, and have to let it go: {others}" if others else ""
    return f"{what}{also}"


def _placed(entry: Entry) -> Said:
    if entry.change_refused is not None:
        return Said(
            _TRUE,
            Reason.CHANGE_REFUSED,
            "runs on as it was admitted, because the changed spec does not hold on "
            f"{entry.change_refused.device}: {entry.change_refused.text}",
        )
    return Said(_TRUE, Reason.ADMITTED, _holds(entry))


def _given_up(kept_s: float) -> Said:
    return Said(
        _FALSE,
        Reason.NO_PODS,
        f"its place was given up, because no pod of it was there with its claim for "
        f"{kept_s / 60:g} min; it is asked for again when one is",
    )


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
    gone = seat.place not in {ledger.key for ledger, _ in matching()}
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


def _waits(entry: Entry, matching: Sequence[tuple[Ledger, str]], devices: int) -> Said:
    so_far = f"{len(entry.seats)} of {entry.wanted} pods have a place; " if entry.seats else ""
    if not matching:
        wants = entry.task.spec.device
        model = f" whose product name holds {wants.model!r}" if wants.model else ""
        spec = entry.task.spec
        trains = "" if spec.training is None else " and runs tasks with spec.training"
        return Said(
            _FALSE,
            Reason.NO_MATCHING_DEVICE,
            f"{so_far}none of {devices} devices is of kind {wants.kind.value}{model}{trains}; "
            "change spec.device or add such a node",
        )
    unfit = {ledger.key.node: why for ledger, why in matching if why}
    fitting = sum(not why for _, why in matching)
    if not fitting:
        return Said(_FALSE, Reason.NOT_SCHEDULABLE, so_far + listed(unfit))
    refusal = entry.refusal
    if refusal is None or refusal.reason is Reason.NOT_SCHEDULABLE:
        return Said(_FALSE, Reason.PENDING, f"{so_far}waits for its turn to be tried")
    elsewhere = f"; nor can its pod run elsewhere: {listed(unfit)}" if unfit else ""
    return Said(_FALSE, refusal.reason, so_far + _nearest(refusal, fitting) + elsewhere)


def _given_back(entry: Entry, matching: Matching) -> Said:
    """Of a task with pods that no place was good enough for so far.

    Said the same with a place and without: one that kube-scheduler may give back is no news.
    """
    returned = {key: claim for key, claim in entry.claims.items() if claim.returned}
    kept = sum(seat.claim not in returned for seat in entry.seats)
    so_far = f"{kept} of {entry.wanted} pods have a place; " if kept else ""
    back: dict[str, str] = {}
    for _, claim in sorted(returned.items()):
        back |= dict.fromkeys(claim.returned, claim.why_returned)
    found = matching() if entry.missing else ()
    others = {one.key.node: why for one, why in found if why and one.key.node not in back}
    elsewhere = f"; nor can its pod run elsewhere: {listed(others)}" if others else ""
    refusal = entry.refusal if entry.missing else None
    if refusal is not None and refusal.reason not in {*_NOWHERE, Reason.PENDING}:
        elsewhere += f"; and {_nearest(refusal, sum(not why for _, why in found))}"
    return Said(_FALSE, Reason.NOT_SCHEDULABLE, so_far + listed(back) + elsewhere)


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
