"""Refusals in one sentence: which constraint fails, by how much, and what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tierline_operator.admission.demand import NS, SporadicTask
from tierline_operator.planning.answer import Infeasible, RefusalWord, TaskPlan
from tierline_operator.planning.refusals.remedies import LONGEST_FACTOR, Remedy, find_remedy
from tierline_operator.planning.request import TaskDemand
from tierline_operator.planning.search.options import Task
from tierline_operator.planning.search.residents import Outcome, Search

NOT_PROVEN: Final = "not proven impossible, for the search was cut short"
NOTHING_HELPS: Final = (
    "no more memory, and no single deadline or period that was tried, up to "
    f"{LONGEST_FACTOR} times as long, would be enough"
)
UNSURE: Final = "take a task away, or ask for fewer of them at a time"
NOTHINGS: Final = (NOTHING_HELPS, UNSURE)
"""How a sentence ends that has no remedy."""
_AT_LEAST: Final = "; give the device at least "
_OUTCOMES: Final[Mapping[str, RefusalWord]] = {"late": "DeadlineMissed", "overload": "Overload"}


def mebibytes(size: int) -> str:
    """Bytes as a person reads them, rounded up."""
    tenths = -(-size * 10 // 2**20)
    return f"{tenths / 10:.1f}".removesuffix(".0") + " MiB"


def milliseconds(seconds: float) -> str:
    """Seconds as a person reads them, rounded up to three digits."""
    rounded = rounded_s(seconds) * 1000
    if rounded <= 0:
        return "0 ms"
    if rounded < 999.5:
        return f"{rounded:.3g} ms"
    return f"{rounded / 1000:.3g} s" if rounded < 999_500 else f"{rounded / 1000:.0f} s"


def rounded_s(seconds: float) -> float:
    """Seconds rounded up to three digits, as `milliseconds` says them."""
    if seconds <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return math.ceil(seconds / step - 1e-6) * step


def would_be_enough(what: str, seconds: float, name: str, period_s: float) -> str:
    """A remedy in words, which a manifest may say as they are.

    Rounded up, but for a deadline that would lie after its period's end: that is the period.
    """
    told = milliseconds(seconds)
    if what == "deadline" and rounded_s(seconds) > period_s:
        told = f"{period_s:.9g} s" if period_s >= 1 else f"{period_s * 1000:.9g} ms"
    return f"a {what} of {told} for {name} would be enough"


def memory_exceeded(
    tasks: Sequence[Task],
    need_bytes: int,
    fast_bytes: int,
    workspace_bytes: int,
    *,
    held_workspace_bytes: int,
) -> Infeasible:
    """Not even the smallest plans fit: name the part that weighs most.

    `workspace_bytes` of the need are for workspaces; running pods have so much of them.
    """
    size = tasks[0].demand.layout.extent_bytes
    missing = need_bytes - fast_bytes
    if any(task.held is not None for task in tasks):
        return _no_room_with_held(tasks, missing, fast_bytes, held_workspace_bytes)
    workspace = max(tasks, key=lambda task: task.demand.working_bytes)
    kept = max(tasks, key=_least_extents)
    wide = max(tasks, key=lambda task: task.span if task.may_stream else -1)
    kept_bytes = sum(map(_least_extents, tasks)) * size
    # What is left of the need: rings, or what layers wider than the ring must keep.
    if workspace_bytes + kept_bytes <= fast_bytes:
        span_bytes, instead = wide.span * size, "split that layer"
        return Infeasible(
            kind="ring",
            reason="LayerTooLarge",
            sentence=(
                f"layer {wide.wide_layer} of {wide.demand.name} needs {mebibytes(span_bytes)} of "
                f"fast memory at once, which with the resident weights and workspaces is "
                f"{mebibytes(missing)} more than the {mebibytes(fast_bytes)} there are"
                f"{_at_least(missing, instead)}"
            ),
            instead=instead,
            task=wide.demand.name,
            missing_bytes=missing,
        )
    own_bytes = workspace.demand.working_bytes
    part_bytes = max(own_bytes, _least_extents(kept) * size)
    largest, part, instead = kept, "weights that must stay resident", "make that part smaller"
    if own_bytes == part_bytes:
        largest, part = workspace, "workspace"
    if largest.demand.trains:
        part = (
            f"a step ({mebibytes(largest.demand.state_bytes)} of it parameters, gradients and "
            "optimizer state, which stay)"
        )
    together = (
        f"{mebibytes(workspace_bytes)} are workspaces, which programs on this device keep between "
        "jobs; "
        if workspace_bytes > own_bytes
        else ""
    )
    return Infeasible(
        kind="memory",
        reason="FastMemoryExceeded",
        sentence=(
            f"the tasks need at least {mebibytes(need_bytes)} of fast memory and "
            f"{_there(fast_bytes)}: {mebibytes(missing)} are missing; {together}the largest "
            f"part is {mebibytes(part_bytes)} of {part} of {largest.demand.name}"
            f"{_at_least(missing, instead)}"
        ),
        instead=instead,
        task=largest.demand.name,
        missing_bytes=missing,
    )


def _at_least(missing: int, instead: str) -> str:
    """With that much all of it fits; whether deadlines hold then nobody has asked."""
    return f"{_AT_LEAST}{mebibytes(missing)} more fast memory, or {instead}, and ask again"


def lacks_memory(refusal: Infeasible) -> bool:
    """Whether its sentence says how much memory is needed at least."""
    return _AT_LEAST in refusal.sentence


def enough_memory(refusal: Infeasible, more_bytes: int) -> Infeasible:
    """That refusal with what is enough in place of what is needed at least."""
    what = refusal.sentence.rpartition(_AT_LEAST)[0]
    help_ = f"{mebibytes(more_bytes)} more fast memory would be enough, or {refusal.instead}"
    return replace(refusal, sentence=f"{what}; {help_}", missing_bytes=more_bytes)


def _there(fast_bytes: int) -> str:
    """How much fast memory there is; of what is taken by others already nothing is left."""
    return f"there are {mebibytes(fast_bytes)}" if fast_bytes > 0 else "none is left"


def yield_elsewhere(tasks: Sequence[TaskDemand]) -> Infeasible:
    """Jobs of running pods yield, and that cannot be with a preserved workspace, or any more."""
    pods = [task.name for task in tasks if task.held is not None and task.held.yielding is not None]
    dirty = next((task.name for task in tasks if task.preserved_bytes), None)
    what = (
        "this device's agent does not do that any more"
        if dirty is None
        else f"the workspace of {dirty} is to be preserved, which takes jobs that do not"
    )
    return Infeasible(
        kind="deadline",
        reason="DeadlineMissed",
        sentence=(
            f"running pods of {', '.join(pods)} give the device away where a layer ends, and "
            f"{what}; start them again"
        ),
        task=dirty,
    )


def _no_room_with_held(
    tasks: Sequence[Task], missing: int, fast_bytes: int, workspace_bytes: int
) -> Infeasible:
    """The smallest plans do not fit in addition to what running pods hold."""
    size = tasks[0].demand.layout.extent_bytes
    rings: dict[str, int] = {}
    resident = parked = 0
    for task in tasks:
        if task.held is not None:
            parked += task.held.yielding.parked_bytes if task.held.yielding else 0
            domain = task.demand.domain
            rings[domain] = max(rings.get(domain, 0), task.held.ring_extents)
            resident += len(task.held.resident_extents)
    held = (resident + sum(rings.values())) * size + workspace_bytes + parked
    instead = "end one of them"
    return Infeasible(
        kind="memory",
        reason="FastMemoryExceeded",
        sentence=(
            f"running pods hold {mebibytes(held)} of the {mebibytes(fast_bytes)} of fast memory: "
            f"{mebibytes(missing)} are missing{_at_least(missing, instead)}"
        ),
        instead=instead,
        missing_bytes=missing,
    )


def deadline_missed(
    search: Search,
    outcome: Outcome,
    *,
    missing_bytes: int | None,
    cut_short: bool,
    memory_unsure: bool,
    nearest: tuple[TaskPlan, ...],
) -> Infeasible:
    """The test refuses the nearest plan; `missing_bytes` more memory would be enough, if given.

    `cut_short`: there are plans that were not tried; `memory_unsure`: with more memory.
    """
    tasks = search.tasks
    sporadic = sporadic_tasks(search, outcome)
    late = outcome.kind == "late"
    victims = [search.due[i] for i in search.test.victims(outcome.critical_ns)] if late else []
    blocker = None if outcome.blocker is None else tasks[outcome.blocker].demand.name
    remedy, unsure = None, cut_short or memory_unsure
    # It knows nothing of jobs that run on without their rank.
    if missing_bytes is None and not search.contained(outcome.chosen, outcome.preemptible):
        implicit = [i for i, task in enumerate(tasks) if task.demand.implicit_deadline]
        firsts = search.firsts(outcome.chosen, outcome.preemptible).tolist()
        starting = {
            index: replace(sporadic[index], deadline_s=None, cost_s=ns / NS, section_s=ns / NS)
            for index, ns in enumerate(firsts)
            if ns
        }
        advice = find_remedy(
            *([*sporadic, *starting.values()], victims, outcome.blocker),
            implicit=implicit,
            preemptible=outcome.preemptible,
            late_s={index: task.jitter_s for index, task in enumerate(tasks) if task.jitter_s},
        )
        remedy, unsure = advice.remedy, unsure or not advice.all_tried
        if remedy is not None and remedy.index >= len(tasks):
            # Only a program's first jobs are in the way, and they go where it goes.
            whose = list(starting)[remedy.index - len(tasks)]
            remedy = replace(remedy, index=whose)
    load = sum(task.cost_s / task.period_s for task in sporadic)
    if late:
        what = _late(search, sporadic, outcome, victims)
    elif outcome.kind == "overload":
        what = f"the tasks need {math.ceil(load * 1000) / 10:g} % of the device's time"
    else:
        what = (
            f"the tasks need {load * 100:.4f} % of the device's time, and periods without a common "
            "multiple leave that too close to all of it for a proof"
        )
    if cut_short:
        what = f"{NOT_PROVEN}: with the nearest of the plans that were tried {what}"
    help_ = _help(sporadic, remedy, missing_bytes, unsure=unsure)
    return Infeasible(
        kind="deadline",
        reason=_OUTCOMES.get(outcome.kind, "UtilisationUnproven"),
        sentence=f"{what}; {help_}",
        task=tasks[victims[0]].demand.name if victims else None,
        critical_time_s=outcome.critical_ns / NS if late else None,
        blocker=blocker,
        shortfall_s=outcome.late_ns / NS if late else math.inf,
        missing_bytes=missing_bytes,
        nearest=nearest,
        scheduling=search.scheduling,
        cut_short=cut_short,
    )


def begins_too_late(task: TaskDemand, margin: float) -> Infeasible:
    """Its deadline has passed when it asks for the device."""
    late_s = task.jitter_s * margin
    return Infeasible(
        kind="deadline",
        reason="DeadlineMissed",
        sentence=(
            f"{task.name} asks for the device up to {milliseconds(late_s)} after its release, and "
            f"has a deadline of {milliseconds(task.deadline_s)}; prepare its input before the "
            "release, or give it a longer deadline"
        ),
        task=task.name,
        shortfall_s=late_s - task.deadline_s,
    )


def sporadic_tasks(search: Search, outcome: Outcome) -> list[SporadicTask]:
    """The tasks with the costs and sections that the outcome was judged by."""
    charged = zip(*search.charged(outcome.chosen, outcome.preemptible), strict=True)
    return [
        SporadicTask(
            task.demand.name,
            task.period_ns / NS,
            task.deadline_ns / NS if task.guaranteed else None,
            cost / NS,
            section / NS,
        )
        for task, (cost, section) in zip(search.tasks, charged, strict=True)
    ]


def resident_all_the_same(search: Search, outcome: Outcome, index: int) -> str:
    """Why a task that is to stream has all its weights resident in an admitted set."""
    task, options = search.tasks[index], search.options[index]
    start = f"{task.demand.name} is to stream, but all of its weights stay resident: "
    if len(options) == 1:
        return f"{start}none of them may be streamed (pinned or reserved)"
    streaming = list(outcome.chosen)
    streaming[index] = len(options) - 2
    option, late = options[-2], search.judge(streaming, outcome.preemptible)
    homes = sorted(
        {task.homes[e] for e in range(len(task.homes)) if e not in option.point.resident}
    )
    size = mebibytes(option.point.streamed_extents * task.demand.layout.extent_bytes)
    excess = f", {milliseconds(late.late_ns / NS)} too long" if late.kind == "late" else ""
    return (
        f"{start}with {size} of them read from {' and '.join(homes)} a job would take "
        f"{milliseconds(option.job_time_s)}{excess}; a longer deadline would let it stream"
    )


def _late(
    search: Search, tasks: Sequence[SporadicTask], outcome: Outcome, victims: Sequence[int]
) -> str:
    jobs = search.test.jobs_due(outcome.critical_ns)
    demand_s = sum(tasks[i].cost_s * count for i, count in zip(search.due, jobs, strict=True))
    victim = tasks[victims[0]]
    held = ""
    if outcome.blocker is not None:
        name, section_s = tasks[outcome.blocker].name, tasks[outcome.blocker].section_s or 0.0
        first_ns, starting = search.first(outcome.chosen, outcome.preemptible)
        if starting == outcome.blocker and first_ns / NS > section_s:
            name, section_s = f"a first job of {name}, when its program starts,", first_ns / NS
        held = f" and {name} may hold the device for {milliseconds(section_s)} before them"
    late_s = search.tasks[victims[0]].jitter_s
    asks = f", of which up to {milliseconds(late_s)} pass before it asks" if late_s else ""
    deadline_s = (victim.deadline_s or 0.0) + late_s
    return (
        f"{victim.name} cannot keep its deadline of {milliseconds(deadline_s)}{asks}: in a "
        f"window of {milliseconds(outcome.critical_ns / NS)} the jobs that are due take "
        f"{milliseconds(demand_s)}{held}, {milliseconds(outcome.late_ns / NS)} too long"
    )


def _help(
    tasks: Sequence[SporadicTask],
    remedy: Remedy | None,
    missing: int | None,
    *,
    unsure: bool,
) -> str:
    if missing is not None:
        return f"{mebibytes(missing)} more fast memory would be enough"
    if remedy is None and unsure:
        return UNSURE
    if remedy is None:
        return NOTHING_HELPS
    task = tasks[remedy.index]
    if remedy.what == "removal":
        return f"the others would hold without {task.name}"
    return would_be_enough(remedy.what, remedy.value_s, task.name, task.period_s)


def workspace_unknown(demand: TaskDemand) -> str:
    """The planned part of a task's workspace, where nobody has seen its peak."""
    return (
        f"what jobs of {demand.name} allocate could not be measured, and the plan has "
        f"{demand.workspace_bytes / 2**20:.1f} MiB for it, inputs and buffers alone; state "
        "spec.memory.workspace"
    )


def _least_extents(task: Task) -> int:
    """Extents that the task keeps resident whatever the ring."""
    if not task.may_stream:
        return task.demand.layout.extent_count
    return max(task.kept_extents, task.least_extents)
