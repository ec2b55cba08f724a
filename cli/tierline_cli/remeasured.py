"""Jobs that had the device for longer than planned, and profiles that say so.

A proof is for jobs that take no longer than their profile says, with the margin. One that did makes
the profile wrong: `remeasured` lengthens its layers, all by the same factor, until the recursion
that plans are made with gives the plan's jobs the time that was measured, without a margin. So what
is planned next with this profile has its margin above what was seen.

Which layer took longer is not known here, nor whether a link did: links are measured by themselves.
A task that states its execution time is planned by that, whatever its profile says.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierline_api.memnode import MemNode
from tierline_api.memprofile import MemProfile
from tierline_api.memtask import MemTask
from tierline_cli import decide
from tierline_operator.planning.answer import Infeasible, TaskPlan
from tierline_operator.planning.planner import prepare

_MOST = 2.0**20
"""A profile whose times would have to be so many times longer says nothing."""
_CLOSE = 1.001


@dataclass(frozen=True)
class JobTimes:
    """How long the jobs of a task had the device, seconds."""

    jobs: int
    overruns: int
    """Jobs that had it for longer than planned."""
    worst_s: float
    planned_s: float

    def sentence(self, task: MemTask) -> str:
        """What a person should know of them, and do."""
        if task.spec.realtime.execution_time_s is not None:
            fix = "state a longer spec.realtime.executionTime"
        else:
            fix = "plan again with a profile that has these times: --profiles-file writes it"
        return (
            f"{task.name}: {self.overruns} of {self.jobs} jobs had the device for longer than the "
            f"{self.planned_s * 1e3:.1f} ms that were planned, {self.worst_s * 1e3:.1f} ms at "
            f"worst; what was proven is not proven for such jobs: {fix}"
        )


def remeasured(
    task: MemTask, profile: MemProfile, node: MemNode, plan: TaskPlan, worst_s: float
) -> MemProfile:
    """The profile with layers so long that a job of `plan` takes `worst_s` seconds.

    It is the same where its jobs take that long as it stands.
    """
    if task.spec.realtime.execution_time_s is not None:
        return profile
    low, high = 1.0, 1.0
    while _job_time_s(task, _longer(profile, high), node, plan) < worst_s and high < _MOST:
        low, high = high, high * 2
    while high > low * _CLOSE:
        middle = (low + high) / 2
        if _job_time_s(task, _longer(profile, middle), node, plan) < worst_s:
            low = middle
        else:
            high = middle
    return profile if high == 1.0 else _longer(profile, high)


def _longer(profile: MemProfile, factor: float) -> MemProfile:
    layers = tuple(
        layer.model_copy(update={"compute_time_s": layer.compute_time_s * factor})
        for layer in profile.spec.layers
    )
    return profile.model_copy(update={"spec": profile.spec.model_copy(update={"layers": layers})})


def _job_time_s(task: MemTask, profile: MemProfile, node: MemNode, plan: TaskPlan) -> float:
    """Of a job by that plan, with nothing taken to be slower than measured."""
    demand, device = decide.question_of(task, profile, node, margin=1.0)
    prepared = prepare([demand], device)
    if isinstance(prepared, Infeasible):
        raise TypeError(f"it was admitted beside others, but {prepared.sentence}")
    (alone,) = prepared.tasks
    resident = frozenset(plan.resident_extents)
    return alone.worst.total_s(resident, plan.ring_extents) + alone.dispatch_s
