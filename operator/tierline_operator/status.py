"""The status of a MemTask, from what placement says and what its pods show. Pure.

Conditions keep the time of their last transition; the clock is an argument. A status equals how it
reads back, and one that says nothing new equals the one before, so that nobody writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tierline_api.conditions import ConditionStatus, ConditionType, Reason, updated
from tierline_api.memtask import MemTask
from tierline_api.memtask_status import (
    Granted,
    MemTaskStatus,
    Observed,
    Phase,
    Predicted,
    TierBytes,
)
from tierline_api.plan import Plan, Tier
from tierline_operator.placement.verdict import Said, Verdict
from tierline_operator.planning.from_api import plan_of
from tierline_operator.planning.reasons import milliseconds
from tierline_operator.reading import KnownPod
from tierline_operator.writing import fast_bytes

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def status_of(
    task: MemTask,
    verdict: Verdict,
    pods: Sequence[KnownPod],
    observed: Sequence[Observed],
    now: datetime,
) -> MemTaskStatus:
    """What the task's status is to be."""
    ready = _ready(pods, verdict)
    seen = _together(observed)
    said = {
        ConditionType.PROFILED: verdict.profiled,
        ConditionType.ADMITTED: verdict.admitted,
        ConditionType.READY: ready,
        ConditionType.DEADLINES_MET: _deadlines(seen, verdict),
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
    return MemTaskStatus(
        observed_generation=generation,
        phase=Phase.RUNNING if running else verdict.phase,
        reason=(ready if running else _deciding(verdict)).reason.value,
        conditions=tuple(conditions),
        node=first.place.node if first else None,
        device=first.place.device if first else None,
        placed=len(verdict.seats),
        plan=plan,
        granted=_granted(verdict),
        fast_memory_bytes=fast_bytes(first.plan) if first and first.plan else None,
        predicted=_predicted(plan),
        observed=seen,
        remeasured=verdict.remeasured,
        tiers=_tiers(plan),
    )


def _deciding(verdict: Verdict) -> Said:
    """The condition that decides the phase."""
    profiling = verdict.phase == Phase.PROFILING and verdict.profiled.status == _FALSE
    missing = verdict.profiled.status == _FALSE and verdict.admitted.reason == Reason.PENDING
    return verdict.profiled if profiling or missing else verdict.admitted


def _ready(pods: Sequence[KnownPod], verdict: Verdict) -> Said:
    alive = [pod for pod in pods if not pod.meta.leaving and pod.phase in {"Pending", "Running"}]
    ready = sum(pod.ready for pod in alive)
    if not alive:
        return Said(_FALSE, Reason.NOT_RUNNING, "no pod of the task is there")
    gated = sum(pod.gate is not None for pod in alive)
    held = f"; {gated} wait for their admission" if gated else ""
    if ready == len(alive):
        return Said(_TRUE, Reason.RUNNING, f"{ready} of {len(alive)} pods are ready")
    reason = Reason.STARTING if verdict.seats else Reason.NOT_RUNNING
    return Said(_FALSE, reason, f"{ready} of {len(alive)} pods are ready{held}")


def _deadlines(observed: Observed | None, verdict: Verdict) -> Said:
    if verdict.unproven:
        return Said(
            _FALSE,
            Reason.OVERRUNS_NOT_HELD,
            f"{verdict.unproven}; what runs there goes on by the times it was admitted with, which "
            "are too short: give the tasks that over-ran more time or fewer neighbours, or a "
            "MemProfile that is measured anew",
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
    """What was measured of all pods; times are those of the slowest pod."""
    if len(observed) <= 1:
        return observed[0] if observed else None

    def slowest(values: Sequence[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    jobs = sum(one.jobs for one in observed)
    streamed = sum(one.streamed_bytes_per_job * one.jobs for one in observed)
    return Observed(
        jobs=jobs,
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
    return Granted(
        generation=verdict.granted_generation or 0,
        realtime=verdict.granted.realtime,
        memory=verdict.granted.memory,
        swap=verdict.granted.swap,
    )


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
