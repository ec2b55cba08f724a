"""One more task on a device full of admitted ones, in milliseconds.

The admitted tasks keep their plans, so the only question is what the new one may cost. Admission
answers that in one pass over the deadlines (admission/growth.py): the largest job time with which
every deadline still holds. Paced resident sets (curve.py) for that job time and for shares of it
trade time for memory, and one recursion says what each really costs. Chosen is the fastest one that
leaves the device's headroom to tasks that come later (a job that takes all the time there is would
leave them nothing), else the one with the least memory. So no curve is made and nothing is
searched. Where nothing fits, `settle` plans everybody again, as planner.plan does.

What is admitted here is proven by the same test as ever. Invariant: `with_task` never changes
another task's plan, memory or proof; a refusal of `settle` is a refusal of planner.plan.

Anytime: the answer is good at once, with the deadline as the bound of every response, which the
proof gives for nothing; `responses_s` computes the exact bounds when somebody wants them. Memory
that no deadline needs stays free for the next task, until planner.plan gives it away.

A task that was admitted by its mean, or has several jobs a release, is to the newcomer what its
proof says: its costs and sections. A Soft newcomer is admitted by its worst here; where only its
mean would do, that is for `settle` to find.

What the quick way leaves to `settle`: newcomers that are BestEffort or have several jobs a release,
the first Hard one among Soft ones that keep the device and count by their mean, policy Swap,
preserved workspaces, reserved memory that the deadlines do not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.demand import NS, SporadicTask, instant_ns
from tierline_operator.admission.growth import DemandCurve
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.admission.response import worst_responses
from tierline_operator.planning.answer import Infeasible, TaskPlan
from tierline_operator.planning.grants import task_plan
from tierline_operator.planning.homes.placing import placements
from tierline_operator.planning.jobs.curve import Point, forced_residents, paced
from tierline_operator.planning.planner import answer, prepare, refused, supported
from tierline_operator.planning.prepared import Lean
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.options import Option, Task, displacement_s
from tierline_operator.planning.working_memory import contexts_exceeded, workspace_bytes

AIMS = (0.2, 0.5, 0.8, 0.97)
"""Shares of the largest job time that are aimed at; a paced set may come out a little slower."""
SPENT_ON_USE = 0.5
"""Share of what memory is left that is given away where the device is in use nearly all the time:
with the least memory that deadlines need it often is, and nobody could be added quickly."""
LONGEST_DEADLINE_NS = 60 * NS


@dataclass(frozen=True)
class ProvenSet:
    """The tasks of a device, with plans that are proven together."""

    device: DeviceCapacity
    scheduling: Scheduling
    demands: tuple[TaskDemand, ...]
    lean: Lean
    curve: DemandCurve | None
    """None: too close to full utilisation to be extended quickly."""

    @property
    def plans(self) -> tuple[TaskPlan, ...]:
        """In the order in which the tasks came."""
        return self.lean.plans

    @property
    def fast_bytes_used(self) -> int:
        """Residents, rings, what may be parked, and the workspaces."""
        workspaces = workspace_bytes(self.demands, overlay=self.device.workspaces_overlay)
        return self.lean.extents * _extent_bytes(self.demands) + workspaces

    def with_task(self, demand: TaskDemand) -> ProvenSet | None:
        """The same with one task more, or None if that takes planning everybody again."""
        quick = demand.criticality is not Criticality.BEST_EFFORT
        quick = quick and demand.policy is not SwapPolicy.SWAP and demand.release_calls == 1
        quick = quick and not (self.lean.soft_only and demand.criticality is Criticality.HARD)
        everyone = (*self.demands, demand)
        quick = quick and deadlines_ns([demand], self.device)[0] > 0
        known = {other.name for other in self.demands}
        moved = any(other.preserved_bytes for other in everyone)
        crowded = contexts_exceeded(len(everyone), self.device) is not None
        if self.curve is None or not quick or moved or crowded or demand.name in known:
            return None
        stay = [plan.home_of_extent for plan in self.plans]
        placed = placements(everyone, self.device, stay)
        if isinstance(placed, Infeasible):
            return None
        homes, by = placed[0].homes, placed[0].by
        size = demand.layout.extent_bytes
        if self.demands and _extent_bytes(self.demands) != size:
            return None
        known_s = displacement_s(self.device, chain.from_iterable(homes[:-1]), size)
        displaced_s = displacement_s(self.device, chain.from_iterable(homes), size)
        if displaced_s > known_s and any(plan.streamed_bytes for plan in self.plans):
            return None  # the others' streams would wait longer for its, too
        task = Task(demand, homes[-1], self.device, displaced_s=displaced_s, homes_by=by)
        most_ns = self.curve.largest_cost(task.period_ns, task.deadline_ns)
        workspaces = workspace_bytes(everyone, overlay=self.device.workspaces_overlay)
        room = (self.device.fast_bytes - workspaces) // size - self.lean.extents
        charged_ns = self._most_charged(task)
        fits: list[tuple[int, Option, int, int]] = []
        for option, more_ring in self._choices(task, most_ns - charged_ns, room):
            cost_ns = option.cost_ns + task.later_ns(option)
            cost_ns += self._charge(task, option, charged_ns)
            taken = option.extents + more_ring
            starts_ns = task.first_ns(option, preemptible=False)
            if cost_ns <= most_ns and taken <= room and starts_ns <= self.curve.background:
                fits.append((taken, option, more_ring, cost_ns))
                if taken <= room * (1 - self.device.headroom):
                    break
        if not fits:
            return None
        _, option, more_ring, cost_ns = min(fits, key=lambda fit: fit[0])
        return self._grown(task, option, more_ring, cost_ns)

    def responses_s(self) -> list[float | None]:
        """The exact bound of each task's response time, seconds; slower than all the rest."""
        if not all(demand.simple for demand in self.demands):
            return [granted.response_s for granted in self.plans]  # settled, so they have it
        rows = zip(self.demands, self.lean.costs, self.lean.sections, strict=True)
        starting = SporadicTask("", 1.0, None, 0.0, self.lean.first_ns / NS)
        bounds = worst_responses([*(self._sporadic(*row) for row in rows), starting])[:-1]
        return [
            None if bound_s is None else bound_s + self._jitter_s(demand)
            for bound_s, demand in zip(bounds, self.demands, strict=True)
        ]

    def _jitter_s(self, demand: TaskDemand) -> float:
        return demand.jitter_s * self.device.margins.compute

    def _sporadic(self, demand: TaskDemand, cost_ns: int, section_ns: int) -> SporadicTask:
        due = demand.criticality is not Criticality.BEST_EFFORT
        limit_s = demand.deadline_s - self._jitter_s(demand) if due else None
        return SporadicTask(demand.name, demand.period_s, limit_s, cost_ns / NS, section_ns / NS)

    def _choices(self, task: Task, left_ns: int, room: int) -> Iterator[tuple[Option, int]]:
        """Options with the ring extents that each adds, faster ones first."""
        if task.may_be_resident and not task.must_stream:
            yield task.resident(), 0
        ring = self.lean.rings.get(task.demand.domain, 0)
        needed = task.span + 1
        if task.may_stream and task.span:
            least = max(2, task.least_ring)
            for size in dict.fromkeys(size for size in (ring, needed, needed + 2) if size >= least):
                if size - ring > room:
                    continue
                for option in _paced(task, left_ns, size):
                    yield option, max(0, min(size, option.point.streamed_extents) - ring)
        if task.may_be_resident and task.must_stream:
            yield task.resident(), 0

    def _most_charged(self, task: Task) -> int:
        """What taking over the device may cost the others, at most."""
        limits = deadlines_ns(self.demands, self.device)
        return max(
            (
                penalty + task.resume_ns
                for index, penalty in self.lean.penalties.items()
                if limits[index] > task.deadline_ns
            ),
            default=0,
        )

    def _charge(self, task: Task, option: Option, most: int) -> int:
        """admission/preemption.py's charge; the new task itself is never preempted."""
        keeps = self.scheduling is Scheduling.RING_KEEPING and not option.point.streamed_extents
        return task.resume_ns if most and keeps else most

    def _grown(self, task: Task, option: Option, more_ring: int, cost_ns: int) -> ProvenSet:
        assert self.curve is not None  # noqa: S101 - with_task has looked
        demand, lean = task.demand, self.lean
        rings = dict(lean.rings)
        rings[demand.domain] = rings.get(demand.domain, 0) + more_ring
        granted = task_plan(task, option, rings[demand.domain], demand.deadline_s)
        return ProvenSet(
            self.device,
            self.scheduling,
            (*self.demands, demand),
            Lean(
                plans=(*map(_bounded, lean.plans, self.demands), granted),
                costs=(*lean.costs, cost_ns),
                sections=(*lean.sections, cost_ns),
                penalties=lean.penalties,
                rings=rings,
                first_ns=lean.first_ns,
                contained=lean.contained,
                soft_only=lean.soft_only,
                extents=lean.extents + option.extents + more_ring,
            ),
            self.curve.with_task(task.period_ns, task.deadline_ns, cost_ns),
        )


def settle(demands: Sequence[TaskDemand], device: DeviceCapacity) -> ProvenSet | Infeasible:
    """Plan everybody again; the refusal is planner.plan's. Raises ValueError like it."""
    prepared = prepare(demands, device)
    if isinstance(prepared, Infeasible):
        return refused(prepared, demands, device)
    if not demands:
        way = supported(device)[0]
        nothing = Lean((), (), (), {}, {}, 0, (), soft_only=False, extents=0)
        return ProvenSet(device, way, (), nothing, _curve((), (), nothing))
    limits = deadlines_ns(demands, device)
    for way in supported(device):
        for one in prepared:
            for share in (0.0, SPENT_ON_USE):
                lean = one.lean(device.fast_bytes, way, share=share)
                if lean is None:
                    break
                curve = _curve(demands, limits, lean)
                if curve is not None or share:
                    return ProvenSet(device, way, tuple(demands), lean, curve)
    refusal = answer(prepared, device, (device.fast_bytes,))
    if not isinstance(refusal, Infeasible):
        raise TypeError("the planner admits a set that it has just refused")
    return refusal


def admit(proven: ProvenSet, demand: TaskDemand) -> ProvenSet | Infeasible:
    """One task more: quickly if that works, else by planning everybody again."""
    quick = proven.with_task(demand)
    return settle((*proven.demands, demand), proven.device) if quick is None else quick


def _paced(task: Task, most_ns: int, ring: int) -> Iterator[Option]:
    """Resident sets made for shares of the largest job time."""
    forced = forced_residents(task.worst, ring)
    compute_s = sum(task.worst.compute_s)
    for share in AIMS:
        aim_s = most_ns / NS * share - task.dispatch_s
        if aim_s < compute_s or compute_s <= 0:
            continue
        held = paced(task.worst, ring, forced, aim_s)
        streamed = len(task.homes) - len(held)
        if streamed and len(held) >= task.least_extents:
            point = Point(len(held), task.worst.total_s(held, ring), held, streamed)
            yield task.option(point, ring)


def deadlines_ns(demands: Sequence[TaskDemand], device: DeviceCapacity) -> list[int]:
    """From when a release asks for the device at the latest to when it is due."""
    margin = device.margins.compute
    return [instant_ns(demand.deadline_s - demand.jitter_s * margin) for demand in demands]


def _curve(
    demands: Sequence[TaskDemand], all_deadlines: Sequence[int], lean: Lean
) -> DemandCurve | None:
    due = [i for i, d in enumerate(demands) if d.criticality is not Criticality.BEST_EFFORT]
    without_rank = {*range(len(demands))} - {*due} | {*lean.contained}
    deadlines = [all_deadlines[i] for i in due]
    return DemandCurve.of(
        [instant_ns(demands[i].period_s) for i in due],
        deadlines,
        [lean.costs[i] for i in due],
        [lean.sections[i] for i in due],
        max([lean.first_ns, *(lean.sections[i] for i in without_rank)]),
        2 * max(deadlines, default=LONGEST_DEADLINE_NS // 2),
    )


def _bounded(granted: TaskPlan, demand: TaskDemand) -> TaskPlan:
    """With its deadline as the bound: that holds whichever task comes."""
    if granted.response_s is None or granted.response_s == demand.deadline_s:
        return granted
    return replace(granted, response_s=demand.deadline_s)


def _extent_bytes(demands: Sequence[TaskDemand]) -> int:
    return demands[0].layout.extent_bytes if demands else 0
