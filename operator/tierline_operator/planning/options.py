"""The choices of one task: its points for each ring, with what each costs on the device.

A Task ties a demand to a device: homes become links, margins and overheads become part of the
times, and curves are made once per ring. Costs are whole nanoseconds, rounded up.

Invariant: `cost_ns` of a point is never below the worst job time of that plan under P3; what a Soft
task is charged by its mean is `planned`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tierline_api.layout import ArenaLayout
from tierline_api.realtime import Criticality
from tierline_api.swap import SwapPolicy
from tierline_operator.admission.demand import cost_ns, instant_ns
from tierline_operator.admission.preemption import PlannedJob
from tierline_operator.planning.curve import Point, forced_residents, pareto
from tierline_operator.planning.held import Held
from tierline_operator.planning.pipeline import LinkRate, Pipeline
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.restart import restart_penalty_s
from tierline_operator.planning.waits import yields_within_s


@dataclass(frozen=True)
class Option:
    """A point of the curve with its costs."""

    point: Point
    extents: int
    """Resident extents: what it takes of fast memory, besides the ring."""
    job_time_s: float
    cost_ns: int
    """Demand of a job; 0 for BestEffort, which has none."""
    section_ns: int
    """How long a job may keep others waiting."""
    ring_extents: int
    """Slots of the ring it streams through."""


class Task:
    """One task on one device."""

    def __init__(
        self,
        demand: TaskDemand,
        homes: Sequence[str],
        device: DeviceCapacity,
        turn_s: float = 0.0,
        displaced_s: float = 0.0,
    ) -> None:
        """`homes` names the tier of each extent; `turn_s` is writeback.py's share of a dispatch.

        `displaced_s` is how long any copy of the set may still be under way when one of its jobs is
        dispatched (`displacement_s`).
        """
        self.demand = demand
        self.homes = tuple(homes)
        self.period_ns = instant_ns(demand.period_s)
        self.deadline_ns = instant_ns(demand.deadline_s)
        self.guaranteed = demand.criticality is not Criticality.BEST_EFFORT
        self.held = demand.held
        policy = demand.policy if self.held is None else None
        self.may_stream = policy in {SwapPolicy.AUTO, SwapPolicy.STREAM, SwapPolicy.SWAP}
        self.must_stream = policy in {SwapPolicy.STREAM, SwapPolicy.SWAP}
        self.may_be_resident = policy in {SwapPolicy.AUTO, SwapPolicy.STREAM, SwapPolicy.RESIDENT}
        self.takes_spare = policy is SwapPolicy.AUTO
        self.dispatch_s = device.dispatch_s + turn_s
        names = sorted(set(homes))
        links = [_slowed(device.tiers[name].link, device.margins.bandwidth) for name in names]
        index = {name: number for number, name in enumerate(names)}
        link_of = [index[name] for name in homes]
        size = demand.layout.extent_bytes
        busy_s = displacement_s(device, homes, size)
        self.displaced_ns = cost_ns(max(0.0, displaced_s - busy_s))
        """How much later its stream may begin behind another task's copy that comes from elsewhere:
        of a stream that it displaces, or of one extent for that task's next job."""

        def pipeline(times: Sequence[float]) -> Pipeline:
            scaled = [seconds * device.margins.compute + device.gate_s for seconds in times]
            return Pipeline(demand.layout, scaled, link_of, links, busy_s)

        self.worst = pipeline(demand.compute_s)
        mean = demand.mean_compute_s if demand.criticality is Criticality.SOFT else None
        self.mean = None if mean is None else pipeline(mean)
        self.compute_s = sum(self.worst.compute_s) + self.dispatch_s
        layout = demand.layout
        self.kept_extents = len(layout.pinned_extents)
        self.span, self.wide_layer = _widest(layout)
        reserved = max(0, demand.reserved_bytes - demand.workspace_bytes)
        self.least_extents = min(-(-reserved // size), layout.extent_count)
        in_own = not device.workspaces_overlay and self.held is None
        self.parked_extents = 0 if in_own else -(-self._activation_bytes() // size)
        """What the task holds besides its plan while it is preempted; nothing where its workspace
        is its own all the time."""
        self.layer_ns = cost_ns(max(self.worst.compute_s, default=0.0) + self.dispatch_s)
        """The longest time from a gate, or a dispatch, to the next gate, beside waits for data."""
        self.yields_while_waiting = device.yields_while_waiting
        # Without layers nothing is known of them but what the plan was made with.
        self._unseen = self.held.yielding if self.held and not layout.layer_count else None
        if self._unseen is not None:
            self.layer_ns = cost_ns(self._unseen.layer_s)
        self.resume_ns = cost_ns(self.dispatch_s)
        """Time to hand the device back to a job that was preempted."""
        self.may_wait_less = (
            self.may_stream and policy is not SwapPolicy.SWAP and not device.yields_while_waiting
        )
        """Whether there are choices that are good only for how soon a job yields."""
        self._options: dict[int, list[Option]] = {}
        self._sooner: dict[int, list[Option]] = {}
        self._yields: dict[tuple[frozenset[int], int], int] = {}
        self._penalties: dict[tuple[frozenset[int], int], int] = {}

    def yields_within_ns(self, option: Option) -> int:
        """How soon after it was asked, or dispatched, a job with that plan stands at a gate.

        A job that waits for data is preempted there and then on `cpu`. On a GPU it gets them first
        (waits.py), and at its dispatch whatever it is delayed behind.
        """
        if self.yields_while_waiting or self._unseen is not None:
            return self.layer_ns
        key = (option.point.resident, option.ring_extents)
        if key not in self._yields:
            within_s = yields_within_s(self.worst, *key) + self.dispatch_s
            self._yields[key] = cost_ns(within_s) + self.later_ns(option)
        return max(self.layer_ns, self._yields[key])

    def _activation_bytes(self) -> int:
        if self.held is not None and self.held.yielding is not None:
            return self.held.yielding.parked_bytes
        live = self.demand.activation_bytes
        return self.demand.workspace_bytes if live is None else live

    def options(self, ring_extents: int, *, to_yield: bool = False) -> list[Option]:
        """The choices with that ring, memory ascending; never empty.

        `to_yield`: for jobs that may be preempted. Adds the fully resident one where less memory is
        as fast: who is to be preempted without loss, or to preempt without harm, must not stream at
        all. And where waits for data cannot be broken off, those with shorter ones; job time does
        not fall all along then.
        """
        found = self._with_ring(ring_extents)
        if to_yield and self.may_wait_less:
            found = self._and_sooner(found, ring_extents)
        if to_yield and self.may_be_resident and found[-1].point.streamed_extents:
            found = [*found, self.resident()]
        return found

    def _and_sooner(self, options: list[Option], ring: int) -> list[Option]:
        """Also sets chosen for half of the ring that shorten a job, or the time until it yields.

        With them fewer extents of a layer are waited for, and there is room to copy ahead.
        """
        if ring not in self._sooner:
            halved = [
                self.option(replace(point, total_s=self.worst.total_s(point.resident, ring)), ring)
                for point in pareto(self.worst, ring // 2, least_extents=self.least_extents)
            ]
            kept: dict[int, Option] = {}
            times: list[tuple[float, int]] = []
            for option in sorted([*options, *halved], key=lambda o: (o.extents, o.job_time_s)):
                job_s, yields_ns = option.job_time_s, self.yields_within_ns(option)
                if option.extents not in kept and all(
                    job_s < other_s or yields_ns < other_ns for other_s, other_ns in times
                ):
                    kept[option.extents] = option
                    times.append((job_s, yields_ns))
            self._sooner[ring] = list(kept.values())
        return self._sooner[ring]

    def _with_ring(self, ring_extents: int) -> list[Option]:
        if self.held is not None:
            return [self._as_held(self.held)]
        ring = ring_extents if self.may_stream else 0
        if ring not in self._options:
            points = pareto(self.worst, ring, least_extents=self.least_extents)
            if self.demand.policy is SwapPolicy.SWAP:
                points = points[:1]
            self._options[ring] = [self.option(point, ring) for point in points]
        return self._options[ring]

    def fewest_resident(self, ring_extents: int) -> int:
        """Extents that no choice with that ring does without."""
        if self.held is not None:
            return len(self.held.resident_extents)
        ring = ring_extents if self.may_stream else 0
        return max(self.least_extents, len(forced_residents(self.worst, ring)))

    def resident(self) -> Option:
        """The choice that keeps everything."""
        return self.options(0)[-1]

    def _as_held(self, held: Held) -> Option:
        """The one choice of a pod that runs; it uses its own slots of a ring of any size."""
        if not self._options:
            resident = frozenset(held.resident_extents)
            total_s = self.worst.total_s(resident, held.ring_extents)
            point = Point(len(resident), total_s, resident, held.streamed_extents)
            self._options[0] = [self.option(point, held.ring_extents)]
        return self._options[0][0]

    def penalty_ns(self, option: Option) -> int:
        """What one preemption makes a job with that plan do again."""
        if self._unseen is not None:
            return cost_ns(self._unseen.penalty_s)
        key = (option.point.resident, option.ring_extents)
        if key not in self._penalties:
            seconds = restart_penalty_s(self.worst, *key) if option.point.streamed_extents else 0.0
            self._penalties[key] = cost_ns(seconds)
        return self._penalties[key]

    def later_ns(self, option: Option) -> int:
        """How much longer a job with that plan may take beside the other tasks of the set.

        Also where nobody is preempted: behind a job's own stream and between jobs an agent goes on
        with the first extents of that task's next job, one at a time, until another job comes. The
        one that is under way then cannot be called back (rule P4 of the realtime theory notes), and
        it may come from a slower tier than any of this task's.
        """
        return self.displaced_ns if option.point.streamed_extents else 0

    def budget_ns(self, option: Option) -> int | None:
        """How long a job of a Soft task with that plan has its rank, by its mean times.

        None without mean times, and where holding its jobs to that would gain nothing. Of a running
        pod it is what its agent holds them to: each job by itself, of which a task with several
        arenas has several a period.
        """
        if self.mean is None or self.demand.layout.arena_count > 1:
            return None
        later_ns = self.later_ns(option)
        mean_s = self.mean.total_s(option.point.resident, option.ring_extents) + self.dispatch_s
        budget_ns = cost_ns(mean_s) + later_ns
        if self.held is not None and self.held.yielding is not None:
            budget_ns = cost_ns(self.held.job_time_s)
        yields_ns = self.yields_within_ns(option)
        return budget_ns if budget_ns + yields_ns < option.cost_ns + later_ns else None

    def planned(self, option: Option, *, preemptible: bool, hard: bool = True) -> PlannedJob:
        """The task with that plan, as admission's charges see it.

        `hard`: deadlines of the device are hard, so only a job that yields may count by its mean.
        """
        later_ns = self.later_ns(option)
        demand_ns = option.cost_ns + later_ns if self.guaranteed else 0
        budget_ns = self.budget_ns(option) if preemptible or not hard else None
        if budget_ns is not None:
            demand_ns = budget_ns + (self.yields_within_ns(option) if preemptible else 0)
        return PlannedJob(
            deadline_ns=self.deadline_ns if self.guaranteed else None,
            cost_ns=demand_ns,
            section_ns=option.section_ns + later_ns,
            layer_ns=self.yields_within_ns(option) if preemptible else self.layer_ns,
            penalty_ns=self.penalty_ns(option) if preemptible else 0,
            streams=option.point.streamed_extents > 0,
            by_mean=budget_ns is not None,
        )

    def option(self, point: Point, ring: int) -> Option:
        """A point of the curve of that ring with its costs."""
        worst_s = point.total_s + self.dispatch_s
        return Option(
            point=point,
            extents=point.resident_extents,
            job_time_s=worst_s,
            cost_ns=cost_ns(worst_s) if self.guaranteed else 0,
            section_ns=cost_ns(worst_s),
            ring_extents=ring,
        )


def displacement_s(device: DeviceCapacity, homes: Iterable[str], size_bytes: int) -> float:
    """How long links from these tiers may go on with what they have begun, seconds.

    A job that streams is dispatched behind all of it: an agent begins no stream before the one that
    it displaces has ended on every link (P3, for each link of the set). That is also the most for
    which an extent copied ahead for another task's next job can hold it up: a link never serves
    more at a time than `in_flight`, whatever it is for.
    """
    links = [device.tiers[name].link for name in set(homes)]
    slowed = [_slowed(link, device.margins.bandwidth) for link in links]
    longest_s = max((link.flight_s(size_bytes) for link in slowed), default=0.0)
    return device.blocked_extents * longest_s


def rings_to_try(tasks: Sequence[Task], *, tight: bool = False) -> list[dict[str, int]]:
    """Ring sizes per domain worth trying, in the order of preference, as domain -> extents.

    A ring one extent larger than a task's widest layer lets every layer of it stream with one
    extent of look-ahead. Preferred is none at all (unless a task is to stream by its policy), then
    one with room for all tasks of the domain and two extents more (uneven copies then stall
    nobody), then ever smaller ones, with wide layers kept resident instead, and at last a larger
    one. Of 104 random sets admitted with streaming, the first such ring served 102. No ring is
    smaller than what a running pod of its domain uses of it.

    `tight`: also one just as large as the widest layer, without look-ahead, before the set is
    refused; where none of them fits in memory, `leanest_rings` may.
    """
    needs: dict[str, list[int]] = {task.demand.domain: [] for task in tasks}
    for task in tasks:
        if task.may_stream and task.span:
            needs[task.demand.domain].append(task.span + 1)

    def level(share: float, more: int = 0) -> dict[str, int]:
        return {
            domain: sorted(sizes)[round(share * (len(sizes) - 1))] + more if sizes else 0
            for domain, sizes in needs.items()
        }

    least = _rings_held(tasks)
    streaming = {task.demand.domain for task in tasks if task.must_stream}
    tried: list[dict[str, int]] = []
    smallest = {domain: 2 if sizes else 0 for domain, sizes in needs.items()}
    middle = [level(1, 2), level(1), level(0.5), smallest]
    none = {domain: size if domain in streaming else 0 for domain, size in middle[0].items()}
    for wished in (none, *middle, level(1, 8), *([level(1, -1)] if tight else [])):
        rings = {domain: max(size, least[domain]) for domain, size in wished.items()}
        if rings not in tried:
            tried.append(rings)
    return tried


def leanest_rings(tasks: Sequence[Task]) -> dict[str, int]:
    """The rings with which the smallest choices of all tasks take least, rings included.

    Nothing else does with less: domains share no ring, so each has its own best one, and one larger
    than the widest layer spares nobody anything. Of rings that take as much the largest.
    """
    best: dict[str, int] = {}
    for domain, held in _rings_held(tasks).items():
        inside = [task for task in tasks if task.demand.domain == domain]
        widest = max((task.span for task in inside if task.may_stream), default=0)

        def taken(ring: int, inside: Sequence[Task] = inside) -> int:
            return ring + sum(task.fewest_resident(ring) for task in inside)

        best[domain] = min(range(max(widest, held), held - 1, -1), key=taken)
    return best


def _rings_held(tasks: Sequence[Task]) -> dict[str, int]:
    """What running pods use of the ring of each domain."""
    held = {task.demand.domain: 0 for task in tasks}
    for task in tasks:
        if task.held is not None:
            held[task.demand.domain] = max(held[task.demand.domain], task.held.ring_extents)
    return held


def _widest(layout: ArenaLayout) -> tuple[int, int]:
    """The extents of the widest layer, and the first layer that is so wide."""
    ends = zip(layout.first_extent, layout.last_extent, strict=True)
    spans = [last - first + 1 for first, last in ends]
    widest = max(spans, default=0)
    return widest, spans.index(widest) if spans else 0


def _slowed(link: LinkRate, margin: float) -> LinkRate:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / margin)
