"""Jobs that took more than planned, time or memory, and profiles that say so.

`remeasured` lengthens a profile's layers, all by the factor that planning/overruns.py finds: what
is planned next with this profile has its margin above what was seen.

A task that states its execution time is planned by that, whatever its profile says.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import Layer, MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.planning import decide
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.overruns import factor_of


@dataclass(frozen=True)
class JobTimes:
    """The worst that jobs of a task took: of the device's time in seconds, of its memory in bytes.

    Each is one call of a model; a release may have several.
    """

    jobs: int
    overruns: int
    """Jobs that had it for longer than planned."""
    worst_s: float
    planned_s: float
    memory_overruns: int = 0
    """Jobs that took more besides the weights than planned."""
    workspace_peak_bytes: int = 0
    workspace_planned_bytes: int = 0

    @classmethod
    def of(cls, plan: TaskPlan, counted: Mapping[str, Any]) -> Self:
        """From what the agent `counted` of a task with this plan."""
        return cls(
            jobs=counted["jobs"],
            overruns=counted["overruns"],
            worst_s=counted["job_time_worst_ns"] / 1e9,
            planned_s=plan.call_s,
            memory_overruns=counted["memory_overruns"],
            workspace_peak_bytes=counted["workspace_peak_bytes"],
            workspace_planned_bytes=plan.workspace_bytes,
        )

    def sentence(self, task: MemTask) -> str:
        """The sentences about them for a person, with what to do."""
        if task.spec.realtime.execution_time_s is not None:
            fix = "state a longer spec.realtime.executionTime"
        else:
            fix = "plan again with a profile that has these times: --profiles-file writes it"
        return (
            f"{task.name}: {self.overruns} of {self.jobs} jobs had the device for longer than the "
            f"{self.planned_s * 1e3:.1f} ms that were planned for one, {self.worst_s * 1e3:.1f} ms "
            f"at worst; what was proven is not proven for such jobs: {fix}"
        )

    def memory_sentence(self, task: MemTask) -> str:
        """The same of their memory."""
        return (
            f"{task.name}: {self.memory_overruns} of {self.jobs} jobs took more memory besides the "
            f"weights than the {self.workspace_planned_bytes / 2**20:,.1f} MiB that were planned, "
            f"{self.workspace_peak_bytes / 2**20:,.1f} MiB at most: write that as "
            "spec.memory.workspace, or plan with the profile that --profiles-file writes"
        )


def remeasured(
    task: MemTask, profile: MemProfile, node: MemNode, plan: TaskPlan, seen: JobTimes
) -> MemProfile:
    """The profile with what its jobs took: a job of `plan` takes the worst time and memory seen.

    It is the same where it says so as it stands.
    """
    if seen.workspace_peak_bytes > profile.spec.workspace_bytes and seen.memory_overruns:
        more = profile.spec.model_copy(update={"workspace_bytes": seen.workspace_peak_bytes})
        profile = profile.model_copy(update={"spec": more})
    return _slower(task, profile, node, plan, seen.worst_s) if seen.overruns else profile


def _slower(
    task: MemTask, profile: MemProfile, node: MemNode, plan: TaskPlan, worst_s: float
) -> MemProfile:
    """The profile with layers so long that a job of `plan` takes `worst_s` seconds."""
    if task.spec.realtime.execution_time_s is not None:
        return profile
    demand, device = decide.question_of(task, profile, node, margin=1.0)
    factor = factor_of(
        *(demand, device, plan.resident_extents, plan.ring_extents, plan.home_of_extent, worst_s)
    )
    return profile if factor == 1.0 else _longer(profile, factor)


def _longer(profile: MemProfile, factor: float) -> MemProfile:
    layers = tuple(_layer_longer(layer, factor) for layer in profile.spec.layers)
    return profile.model_copy(update={"spec": profile.spec.model_copy(update={"layers": layers})})


def _layer_longer(layer: Layer, factor: float) -> Layer:
    longest_s = layer.longest_compute_time_s
    return layer.model_copy(
        update={
            "compute_time_s": layer.compute_time_s * factor,
            "longest_compute_time_s": None if longest_s is None else longest_s * factor,
        }
    )
