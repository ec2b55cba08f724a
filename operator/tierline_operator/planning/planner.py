"""Plans for all tasks of a device, with the proof that every deadline holds, or the reason why not.

The memory constraint, in extents: the resident extents of all tasks, plus for each trust domain the
largest ring of its tasks, plus the workspaces (bytes; working_memory.py: the largest, or on devices
whose programs keep theirs the sum), fit in fast memory. Tasks of a domain share the ring because
jobs run one at a time and nothing in it outlives a job.

How a plan is found: homes first (homes/placing.py), one or two placements, the second of which is
asked where the first one does not hold; then for a few ring sizes (search/options.py) a search for
resident sets (search/residents.py) until the exact test (admission/demand.py) accepts. Where none
of these rings leaves room for everybody's smallest plan, those that leave most are asked at last.
What is left of memory afterwards goes to Auto tasks by gain in utilisation, which can only shorten
jobs; the test is sustainable, and it is asked again all the same. The search goes for whole models
where that is the shortest way, so tasks that are to stream give back first what their deadlines do
not need; where one must be fully resident all the same, a remark says why.

Theorem for the answer (P2, P3): a job holds device and copy engine together from dispatch to
end, with an empty ring at first, so non-preemptive EDF with the job times of the recursion as costs
is exact; with the start delay of P3 it stays safe when a link still moves one extent of something
else. Assumptions: leases by absolute deadline, one job at a time, times and bandwidths no worse
than given after margins. Soft tasks with mean times are admitted by them where their jobs yield:
the planned job time is then a budget, past which a job has no rank any more, so others are
guaranteed whatever it takes (admission/preemption.py); and where no task of the device is Hard.
Best-effort tasks have no deadline and must be dispatched only when nobody else waits; their whole
job counts as blocking.

Where jobs may be preempted at layer boundaries, costs and sections are those of
admission/preemption.py, and the activations of all preemptible tasks are part of the constraint:

    sum of resident + rings + workspaces + sum of parked <= fast memory.

What no choice can do is refused before anything is searched (search/bound.py). A few tasks are
searched to the end; for more the effort is bounded by a count, so that an answer does not depend on
the machine, and a refusal that was cut short says so.

A model is never swapped as a whole: under policy Swap it streams all that it can, which is never
slower. A program without layers is swapped within its workspace (writeback.py).

What a running pod holds (held.py) is the one choice of its task: memory, ring and homes stay as
they are, and the theorem is applied to the job times that follow from them. Which jobs yield stays
as it is, too, and with it the way of scheduling as soon as one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.homes.placing import Placement, placements
from tierline_operator.planning.prepared import Prepared
from tierline_operator.planning.refusals.blame import blamed, with_enough_memory, with_more_time
from tierline_operator.planning.refusals.reasons import (
    NOT_PROVEN,
    begins_too_late,
    yield_elsewhere,
)
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.options import (
    Task,
    displacement_s,
)
from tierline_operator.planning.search.residents import FEW
from tierline_operator.planning.working_memory import contexts_exceeded
from tierline_operator.planning.writeback import turns_s

PREFERENCE: Final = (
    Scheduling.NON_PREEMPTIVE,
    Scheduling.RING_KEEPING,
    Scheduling.LAYER_PREEMPTIVE,
)
"""The order in which ways of scheduling are tried: first the one that asks least of a device and
whose test is exact; then the one whose charges are never above those of the last."""


def plan(
    tasks: Sequence[TaskDemand],
    device: DeviceCapacity,
    *,
    give_spare: bool = True,
    within_bytes: int | None = None,
    scheduling: Scheduling | None = None,
) -> Admitted | Infeasible:
    """Choose scheduling, rings, resident sets and tiers for `tasks` and prove every deadline.

    Of the ways of scheduling that the device supports the first of PREFERENCE that admits the set
    is the answer. `scheduling` asks instead what one of them would do, supported or not: such an
    answer is for people, not for admission. `give_spare=False` leaves memory that no deadline needs
    free; `within_bytes` of fast memory are made do with where that is enough. Raises ValueError
    where two tasks share a name or the extents of tasks differ in size.
    """
    prepared = prepare(tasks, device)
    if isinstance(prepared, Infeasible):
        return refused(prepared, tasks, device, scheduling)
    sizes = (device.fast_bytes,) if within_bytes is None else (within_bytes, device.fast_bytes)
    return answer(prepared, device, sizes, give_spare=give_spare, scheduling=scheduling)


def answer(
    prepared: Sequence[Prepared],
    device: DeviceCapacity,
    sizes: Sequence[int],
    *,
    give_spare: bool = True,
    scheduling: Scheduling | None = None,
) -> Admitted | Infeasible:
    """`plan` of what is prepared; `sizes` of fast memory in turn, the last one being all of it."""
    tasks = [task.demand for task in prepared[0].tasks]
    ways = _ways(tasks, device, scheduling)
    if not ways:
        return yield_elsewhere(tasks)
    for way in ways:
        for fast_bytes in sizes:
            whole = fast_bytes == device.fast_bytes
            for one in prepared:
                if one.holds(fast_bytes, way, tight=whole):
                    return one.answer(fast_bytes, way, give_spare=give_spare, tight=whole)
    # Only now: what would help takes longer to find out than what holds. Of many tasks it is found
    # out for one way and one placement only.
    asked = prepared if len(tasks) <= FEW else prepared[:1]
    told = ways if len(tasks) <= FEW else [prepared[0].nearest_way(device.fast_bytes, ways)]
    refusals = [
        found
        for one in asked
        for way in told
        if isinstance(
            found := one.answer(device.fast_bytes, way, give_spare=give_spare), Infeasible
        )
    ]
    nearest = min(refusals, key=_distance)
    cut_short = any(one.cut_short(device.fast_bytes, way) for one in prepared for way in ways)
    if cut_short and not nearest.cut_short:
        sentence = f"{NOT_PROVEN}: {nearest.sentence}"
        nearest = replace(nearest, sentence=sentence, cut_short=True)
    return refused(nearest, tasks, device, scheduling)


def _ways(
    tasks: Sequence[TaskDemand], device: DeviceCapacity, scheduling: Scheduling | None
) -> list[Scheduling]:
    """How the device may schedule these tasks, with those whose pods run; none if it cannot."""
    ways = [scheduling] if scheduling is not None else supported(device)
    in_force = {t.held.yielding.scheduling for t in tasks if t.held and t.held.yielding}
    if not in_force:
        return ways
    if not in_force <= set(ways) or any(task.preserved_bytes for task in tasks):
        return []
    return [way for way in ways if {way} == in_force]


def refused(
    refusal: Infeasible,
    tasks: Sequence[TaskDemand],
    device: DeviceCapacity,
    scheduling: Scheduling | None = None,
) -> Infeasible:
    """The refusal, which names the wish of a task that is to blame for it, if one is."""

    def helps(asked: Sequence[TaskDemand]) -> bool:
        prepared = prepare(asked, device)
        if isinstance(prepared, Infeasible) or refusal.kind == "tier":
            return not isinstance(prepared, Infeasible)
        ways = _ways(asked, device, scheduling)
        fast_bytes = device.fast_bytes
        if refusal.kind == "deadline":
            return any(one.holds(fast_bytes, way) for one in prepared for way in ways)
        return any(one.fits(fast_bytes, way) for one in prepared for way in ways)

    refusal = blamed(refusal, tasks, helps)
    if len(tasks) > FEW:
        return refusal
    prepared = prepare(tasks, device)
    if refusal.kind == "deadline" or isinstance(prepared, Infeasible):
        return with_more_time(refusal, tasks, helps)
    ways = _ways(tasks, device, scheduling)

    def enough(more_bytes: int) -> bool:
        fast_bytes = device.fast_bytes + more_bytes
        return any(one.holds(fast_bytes, way) for one in prepared for way in ways)

    plenty = max(one.plenty_bytes for one in prepared) - device.fast_bytes
    return with_enough_memory(refusal, plenty, enough)


def supported(device: DeviceCapacity) -> list[Scheduling]:
    """The ways of scheduling of the device's agent, in the order of PREFERENCE."""
    return [way for way in PREFERENCE if way in device.supports]


def prepare(tasks: Sequence[TaskDemand], device: DeviceCapacity) -> list[Prepared] | Infeasible:
    """The part that does not depend on the size of fast memory, for each placement worth trying.

    Raises ValueError like `plan`.
    """
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise ValueError(f"cannot plan {', '.join(names)}: task names must differ")
    if len({task.layout.extent_bytes for task in tasks}) > 1:
        raise ValueError("cannot plan tasks whose extents differ in size on one device")
    crowded = contexts_exceeded(len(tasks), device)
    if crowded is not None:
        return crowded
    placed = placements(tasks, device)
    if isinstance(placed, Infeasible):
        return placed
    for task in tasks:
        if task.jitter_s * device.margins.compute >= task.deadline_s:
            return begins_too_late(task, device.margins.compute)
    turns = turns_s(tasks, device)
    if isinstance(turns, Infeasible):
        return turns
    return [_prepared(tasks, placement, turns, device) for placement in placed]


def _prepared(
    tasks: Sequence[TaskDemand],
    placement: Placement,
    turns: Sequence[float],
    device: DeviceCapacity,
) -> Prepared:
    size = tasks[0].layout.extent_bytes if tasks else 1
    displaced_s = displacement_s(device, chain.from_iterable(placement.homes), size)
    rows = zip(tasks, placement.homes, turns, strict=True)
    by = placement.by
    ready = [Task(task, home, device, turn, displaced_s, homes_by=by) for task, home, turn in rows]
    return Prepared(ready, overlay=device.workspaces_overlay)


def _distance(refusal: Infeasible) -> tuple[float, float]:
    """Sorts refusals: the one that least is missing for comes first."""
    late = refusal.shortfall_s
    missing = refusal.missing_bytes
    return (
        float("inf") if missing is None else float(missing),
        float("inf") if late is None else late,
    )
