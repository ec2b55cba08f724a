"""The status of a MemTask, from what placement says and what its pods show. Pure.

Conditions keep the time of their last transition; the clock is an argument. A status equals how it
reads back, and one that says nothing new equals the one before, so that nobody writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tierline_api.objects.conditions import ConditionStatus, ConditionType, Reason, updated
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.memtask_status import (
    Granted,
    MemTaskStatus,
    Observed,
    Phase,
    Predicted,
    Shown,
    TierBytes,
)
from tierline_api.objects.optin import TASK
from tierline_api.objects.plan import Plan, Tier
from tierline_api.schema.quantities import size_for_people, time_for_people
from tierline_operator.cluster.decode import KnownPod
from tierline_operator.controller.manifests import fast_bytes
from tierline_operator.placement.books.verdict import Said, Verdict
from tierline_operator.planning.from_api import plan_of
from tierline_operator.planning.refusals.reasons import milliseconds

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def status_of(
    task: MemTask,
    verdict: Verdict,
    pods: Sequence[KnownPod],
    observed: Sequence[Observed],
    now: datetime,
    *,
    failure: str = "",
    hindered: str = "",
    unmade: bool = False,
    silent: str = "",
    unclaimed: Sequence[KnownPod] = (),
    stalled_s: float | None = None,
) -> MemTaskStatus:
    """The task's status, as it is to be.

    `failure` says why its pods cannot be made, `hindered` what of its own objects is refused;
    `unmade` is where that makes its pods. `silent` says why no pod can start where it is placed;
    `unclaimed` are pods that run without a claim, of which that is the one thing to be said. After
    `stalled_s` without being ready it is stalled.
    """
    admitted = _admitted(pods, verdict, hindered)
    ready = _ready(
        *(task, pods, verdict, failure, hindered), unmade=unmade, stalled=stalled_s is not None
    )
    wanted = ready.reason is not Reason.NO_REPLICAS
    if silent and wanted and ready.status == _FALSE:
        ready = replace(ready, message=f"{ready.message}; {silent}")
    waits = wanted and ready.status == _FALSE and verdict.admitted.status == _TRUE
    if stalled_s is not None and waits:
        long = f"has been admitted for {stalled_s / 60:g} min without being ready: {ready.message}"
        ready = Said(_FALSE, Reason.STALLED, long)
    if unclaimed and admitted.reason is not Reason.BEING_DELETED:
        admitted = ready = Said(_FALSE, Reason.NO_CLAIM, without_claim(unclaimed))
        verdict = replace(verdict, admitted=admitted, phase=Phase.REFUSED)
    seen = _together(observed)
    said = {
        ConditionType.PROFILED: verdict.profiled,
        ConditionType.ADMITTED: admitted,
        ConditionType.READY: ready,
        ConditionType.DEADLINES_MET: (
            _deadlines(seen, verdict) if task.spec.training is None else _steps(seen)
        ),
    }
    before = task.status or MemTaskStatus()
    generation = task.metadata.generation
    conditions = list(before.conditions)
    for kind, what in said.items():
        conditions = updated(
            conditions,
            kind,
            what.status,
            what.reason,
            what.message,
            now=now,
            observed_generation=generation,
        )
    running = verdict.phase == Phase.ADMITTED and ready.status == _TRUE
    first = verdict.seats[0] if verdict.seats else None
    plan = plan_of(first.plan, first.scheduling) if first and first.plan else None
    fast = fast_bytes(first.plan) if first and first.plan else None
    return MemTaskStatus(
        observed_generation=generation,
        phase=Phase.RUNNING if running else verdict.phase,
        reason=(ready if running else _deciding(verdict)).reason.value,
        conditions=tuple(conditions),
        node=first.place.node if first else None,
        device=first.place.device if first else None,
        placed=len(verdict.seats),
        replicas=len(_alive(pods)),
        selector=f"{TASK}={task.name}",
        plan=plan,
        granted=_granted(verdict),
        fast_memory_bytes=fast,
        shown=_shown(fast, plan, seen),
        predicted=_predicted(plan),
        observed=seen,
        remeasured=verdict.remeasured,
        tiers=_tiers(plan),
    )


def without_claim(pods: Sequence[KnownPod]) -> str:
    """What is to be said of pods that run without a claim, by how they came to that."""
    lost = [pod for pod in pods if pod.asks]
    never = [pod for pod in pods if not pod.asks]
    told = []
    if lost:
        told.append(
            f"{_running(lost)} without the claim that it started with, which was deleted or "
            "changed under it; its place is kept from others until it has ended"
        )
    if never:
        told.append(
            f"{_running(never)} outside of Tierline: made while its admission policies were not "
            "in force, it has neither claim nor gate"
        )
    return f"{'; '.join(told)}; delete it: the next one gets both"


def _running(pods: Sequence[KnownPod]) -> str:
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    on = f" on {pods[0].node}" if pods[0].node else ""
    return f"pod {pods[0].meta.name} runs{on}{more}"


def _deciding(verdict: Verdict) -> Said:
    """The condition that decides the phase."""
    profiling = verdict.phase == Phase.PROFILING and verdict.profiled.status == _FALSE
    missing = verdict.profiled.status == _FALSE and verdict.admitted.reason == Reason.PENDING
    return verdict.profiled if profiling or missing else verdict.admitted


def _alive(pods: Sequence[KnownPod]) -> list[KnownPod]:
    return [pod for pod in pods if not pod.meta.leaving and pod.phase in {"Pending", "Running"}]


def _admitted(pods: Sequence[KnownPod], verdict: Verdict, hindered: str) -> Said:
    """Placement's answer, and where it waits for claims in vain, why none come."""
    said = verdict.admitted
    if said.reason is not Reason.NO_PODS:
        return said
    gated = next((pod for pod in _alive(pods) if pod.gate is not None), None)
    why = hindered or (
        f"pod {gated.meta.name} has no claim from the task's ResourceClaimTemplate: see its events,"
        " and delete it when what they say is mended"
        if gated
        else ""
    )
    return replace(said, message=f"{said.message}; {why}") if why else said


def _ready(
    task: MemTask,
    pods: Sequence[KnownPod],
    verdict: Verdict,
    failure: str,
    hindered: str,
    *,
    unmade: bool,
    stalled: bool,
) -> Said:
    alive = _alive(pods)
    ready = sum(pod.ready for pod in alive)
    # Of a task without a template others say how many there are.
    wanted = task.spec.replicas if task.spec.template is not None else 0
    if not alive:
        return _absent(task, failure, hindered)
    count = f"{ready} of {max(wanted, len(alive))} pods are ready"
    cause = hindered or (failure if len(alive) < wanted else "")
    also = f"; {cause}" if cause else ""
    if ready == len(alive) >= wanted and not unmade:
        return Said(_TRUE, Reason.RUNNING, f"{count}{also}")
    gated = sum(pod.gate is not None for pod in alive)
    held = f"; {gated} wait for their admission" if gated else ""
    reason = Reason.STARTING if verdict.seats else Reason.NOT_RUNNING
    if unmade or (cause and not hindered):
        reason = Reason.REPLICA_FAILURE
    said = ((pod.meta.name, _why(pod, stalled=stalled)) for pod in alive)
    why = next((f"; pod {name}: {what}" for name, what in said if what), "")
    return Said(_FALSE, reason, f"{count}{held}{why}{also}")


def _absent(task: MemTask, failure: str, hindered: str) -> Said:
    """Of a task without a pod."""
    if not hindered and not task.spec.replicas:
        return Said(_FALSE, Reason.NO_REPLICAS, "replicas is 0: no pod of the task is to be there")
    if cause := hindered or failure:
        return Said(_FALSE, Reason.REPLICA_FAILURE, f"no pod of the task is there: {cause}")
    return Said(_FALSE, Reason.NOT_RUNNING, "no pod of the task is there")


def _why(pod: KnownPod, *, stalled: bool) -> str:
    """Why a pod that has left its gate does not run."""
    if pod.waits or pod.unscheduled:
        return pod.waits or f"kube-scheduler says {pod.unscheduled}"
    return pod.unseen if stalled else ""  # every pod is unseen for a moment


def _steps(observed: Observed | None) -> Said:
    if observed is None or not observed.steps:
        return Said(_UNKNOWN, Reason.NO_JOBS, "no step has ended yet")
    return Said(_TRUE, Reason.NO_MISSES, "it trains, and has no deadline")


def _deadlines(observed: Observed | None, verdict: Verdict) -> Said:
    if verdict.unproven:
        return Said(
            _FALSE,
            Reason.OVERRUNS_NOT_HELD,
            f"{verdict.unproven}; what runs there goes on by the times it was admitted with, which "
            "are too short: give the tasks that over-ran more time or fewer neighbours, or a "
            "MemProfile that is measured again",
        )
    if observed is None or not observed.jobs:
        return Said(_UNKNOWN, Reason.NO_JOBS, "no job has ended yet")
    longer = ", ".join(
        f"{one.node}: {milliseconds(one.compute_time_s)} of compute" for one in verdict.remeasured
    )
    by = f"; it is planned with what its jobs that over-ran showed ({longer})" if longer else ""
    if not observed.misses:
        return Said(_TRUE, Reason.NO_MISSES, f"no job ended after its deadline{by}")
    return Said(_FALSE, Reason.DEADLINES_MISSED, f"jobs ended after their deadline{by}")


def _together(observed: Sequence[Observed]) -> Observed | None:
    """Measurements of all pods together; times are those of the slowest pod."""
    if len(observed) <= 1:
        return observed[0] if observed else None

    def slowest(values: Sequence[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    jobs = sum(one.jobs for one in observed)
    streamed = sum(one.streamed_bytes_per_job * one.jobs for one in observed)
    return Observed(
        jobs=jobs,
        steps=sum(one.steps for one in observed),
        misses=sum(one.misses for one in observed),
        response_time_p50_s=slowest([one.response_time_p50_s for one in observed]),
        response_time_p99_s=slowest([one.response_time_p99_s for one in observed]),
        response_time_worst_s=slowest([one.response_time_worst_s for one in observed]),
        overruns=sum(one.overruns for one in observed),
        overrun_job_time_s=slowest([one.overrun_job_time_s for one in observed]),
        streamed_bytes_per_job=streamed // jobs if jobs else 0,
        last_updated=max((o.last_updated for o in observed if o.last_updated), default=None),
    )


def _granted(verdict: Verdict) -> Granted | None:
    if verdict.granted is None:
        return None
    return Granted.of_stored(
        generation=verdict.granted_generation or 0,
        realtime=verdict.granted.realtime,
        memory=verdict.granted.memory,
        swap=verdict.granted.swap,
    )


def _shown(fast: int | None, plan: Plan | None, seen: Observed | None) -> Shown | None:
    bound_s = plan.predicted_response_time_s if plan else None
    trains = seen is not None and seen.steps > 0
    worst_s = seen.response_time_worst_s if seen and not trains else None
    step_s = seen.response_time_p50_s if seen and trains else None
    shown = Shown(
        fast_memory=None if fast is None else size_for_people(fast),
        streamed=size_for_people(seen.streamed_bytes_per_job) if seen else None,
        predicted=None if bound_s is None else time_for_people(bound_s),
        worst=None if worst_s is None else time_for_people(worst_s),
        step=None if step_s is None else time_for_people(step_s),
    )
    return None if shown == Shown() else shown


def _predicted(plan: Plan | None) -> Predicted | None:
    if plan is None:
        return None
    return Predicted(
        job_time_s=plan.predicted_job_time_s, response_time_s=plan.predicted_response_time_s
    )


def _tiers(plan: Plan | None) -> tuple[TierBytes, ...]:
    if plan is None:
        return ()
    homes = plan.home_of_extent
    return tuple(
        TierBytes(tier=tier, bytes=homes.count(tier) * plan.extent_bytes)
        for tier in Tier
        if tier in homes
    )
