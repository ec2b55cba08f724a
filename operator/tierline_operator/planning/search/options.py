"""The choices of one task: its points for each ring, with what each costs on the device.

A Task ties a demand to a device: homes become links, margins and overheads become part of the
times, and curves are made once per ring. Costs are whole nanoseconds, rounded up.

Invariant: `cost_ns` of a point is never below the worst job time of that plan under P3; what a Soft
task is charged by its mean is `planned`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tierline_api.layout import ArenaLayout
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.demand import cost_ns, instant_ns
from tierline_operator.admission.preemption import PlannedJob
from tierline_operator.planning.answer import HomesBy
from tierline_operator.planning.held import Held
from tierline_operator.planning.jobs.curve import STEPS, Point, forced_residents, pareto
from tierline_operator.planning.jobs.pipeline import Pipeline
from tierline_operator.planning.jobs.restart import restart_penalty_s
from tierline_operator.planning.jobs.waits import yields_within_s
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.bound import Choice

COARSE_STEPS = 3
"""As STEPS, for a plan that cannot hold anyhow, and shows by how much."""


@dataclass(frozen=True)
class Option:
    """A point of the curve with its costs."""

    point: Point
    extents: int
    """Resident extents: what it takes of fast memory, besides the ring."""
    job_time_s: float
    """Of a release: all its jobs, and what passes between them."""
    cost_ns: int
    """Demand of a release; 0 for BestEffort, which has none."""
    work_ns: int
    """Its time, guaranteed or not."""
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
        *,
        homes_by: HomesBy = HomesBy.ORDER,
    ) -> None:
        """`homes` names the tier of each extent; `turn_s` is writeback.py's share of a dispatch.

        `displaced_s` is how long any copy of the set may still be under way when one of its jobs is
        dispatched (`displacement_s`).
        """
        self.demand = demand
        self.homes, self.homes_by = tuple(homes), HomesBy.HELD if demand.held else homes_by
        self.period_ns = instant_ns(demand.period_s)
        self._margin = device.margins.compute
        self.deadline_ns = instant_ns(max(0.0, demand.deadline_s - self.jitter_s))
        """From when its first job asks for the device at the latest (an agent orders jobs so)."""
        self.guaranteed = demand.criticality is not Criticality.BEST_EFFORT
        self.held = demand.held
        policy = demand.policy if self.held is None else None
        self.may_stream = policy in {SwapPolicy.AUTO, SwapPolicy.STREAM, SwapPolicy.SWAP}
        self.must_stream = policy in {SwapPolicy.STREAM, SwapPolicy.SWAP}
        keeps_all = policy in {SwapPolicy.AUTO, SwapPolicy.STREAM, SwapPolicy.RESIDENT}
        self.may_be_resident = keeps_all and not demand.streamed
        self.dispatch_s = device.dispatch_s + turn_s
        names = sorted(set(homes))
        links = [device.tiers[name].link.slowed(device.margins.bandwidth) for name in names]
        index = {name: number for number, name in enumerate(names)}
        link_of = [index[name] for name in homes]
        size = demand.layout.extent_bytes
        busy_s = displacement_s(device, homes, size)
        self.displaced_ns = cost_ns(max(0.0, displaced_s - busy_s))
        """How much later its stream may begin after another task's copy that comes from elsewhere:
        of a stream that it displaces, or of one extent for that task's next job."""

        def scaled(times: Sequence[float]) -> list[float]:
            return [seconds * device.margins.compute + device.gate_s for seconds in times]

        def pipeline(times: Sequence[float], longest: Sequence[float] = ()) -> Pipeline:
            return Pipeline(
                *(demand.layout, scaled(times), link_of, links, busy_s, demand.calls),
                longest_s=scaled(longest),
                gate_s=device.gate_s,
                kept=demand.kept,
                streamed=demand.streamed,
                in_turn=device.in_turn,
            )

        self.worst = pipeline(demand.compute_s, demand.longest_s)
        mean = demand.mean_compute_s if demand.criticality is Criticality.SOFT else None
        self.mean = None if mean is None else pipeline(mean)
        self.compute_s = self.worst.release_compute_s + self.calls * self.dispatch_s
        layout = demand.layout
        self.span, self.wide_layer = _widest(layout)
        reserved = max(0, demand.reserved_bytes - demand.workspace_bytes)
        self.least_extents = min(-(-reserved // size), self.most_extents)
        in_own = not device.workspaces_overlay and self.held is None
        self.parked_extents = 0 if in_own else -(-self._activation_bytes() // size)
        """Extents that the task holds in addition to its plan while it is preempted; none where its
        workspace is its own all the time."""
        longest_s = max(self.worst.longest_s, default=device.gate_s)
        self.layer_ns = cost_ns(longest_s + self.dispatch_s)
        """The longest time from a gate, or a dispatch, to the next gate, without waits for data."""
        self.yields_while_waiting = device.yields_while_waiting
        # Without layers nothing is known of them but what the plan was made with.
        self._unseen = self.held.yielding if self.held and not layout.layer_count else None
        if self._unseen is not None:
            self.layer_ns = cost_ns(self._unseen.layer_s)
        self.may_wait_less = (
            self.may_stream and policy is not SwapPolicy.SWAP and not device.yields_while_waiting
        )
        """Whether there are choices that are good only for how soon a job yields."""
        self._options: dict[tuple[int, bool], list[Option]] = {}
        self._sooner: dict[int, list[Option]] = {}
        self._fewest: dict[int, int] = {}
        self._yields: dict[tuple[frozenset[int], int], int] = {}
        self._penalties: dict[tuple[frozenset[int], int], int] = {}

    @cached_property
    def _means_s(self) -> dict[tuple[frozenset[int], int], float]:
        """Mean times of jobs, by resident set and ring."""
        return {}

    @property
    def takes_spare(self) -> bool:
        """Whether memory that no deadline needs goes to it."""
        return self.held is None and self.demand.policy is SwapPolicy.AUTO

    @property
    def resume_ns(self) -> int:
        """Time to hand the device back to a job that was preempted."""
        return cost_ns(self.dispatch_s)

    @property
    def always_streams(self) -> bool:
        """Whether it wishes of some layers that they stream in every plan."""
        return bool(self.demand.streamed)

    @cached_property
    def least_ring(self) -> int:
        """Slots that any ring must have for what is to stream in every plan."""
        return _most_at_once(self.demand.layout, self.demand.streamed)

    @property
    def kept_extents(self) -> int:
        """Extents that are resident whatever the ring."""
        return len(self.demand.layout.pinned_extents | self.demand.kept)

    @property
    def most_extents(self) -> int:
        """Extents that may be resident."""
        return self.demand.layout.extent_count - len(self.demand.streamed)

    @property
    def calls(self) -> int:
        """How many jobs a release has."""
        return self.demand.release_calls

    @property
    def between_s(self) -> float:
        """Time that passes between them, in all, at most: nothing where a release is one job."""
        return self._margin * self.demand.between_s if self.calls > 1 else 0.0

    @property
    def jitter_s(self) -> float:
        """How long after its release the first one asks for the device, at most."""
        return self.demand.jitter_s * self._margin

    def yields_within_ns(self, option: Option) -> int:
        """How soon after it was asked, or dispatched, a job with that plan stands at a gate.

        A job that waits for data is preempted there and then on `cpu`. On a GPU it gets them first
        (waits.py), and at its dispatch first waits for all that delays it.
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

    def options(
        self, ring_extents: int, *, to_yield: bool = False, coarse: bool = False
    ) -> list[Option]:
        """The choices with that ring, memory ascending; never empty. `coarse`: only some of them.

        `to_yield`: for jobs that may be preempted. Adds the fully resident one where less memory is
        as fast: a job that is to be preempted without loss, or to preempt without harm, must not
        stream at all. And where waits for data cannot be broken off, those with shorter ones; job
        time does not fall all along then.
        """
        found = self._with_ring(ring_extents, coarse=coarse)
        if to_yield and self.may_wait_less and not coarse:
            found = self._and_sooner(found, ring_extents)
        if to_yield and self.may_be_resident and found[-1].point.streamed_extents:
            found = [*found, self.resident()]
        if self.stays and found[-1].extents < self.most_extents:
            found = [*found, self._all_but_streamed(self._ring(ring_extents))]
        return found

    @property
    def stays(self) -> bool:
        """Whether what it does not wish to stream stays resident where there is room for it.

        Without wishes that is so because no ring is the first that is tried (`rings_to_try`).
        """
        return self.always_streams and self.takes_spare

    def _all_but_streamed(self, ring: int) -> Option:
        resident = frozenset(range(self.demand.layout.extent_count)) - self.demand.streamed
        total_s = self.worst.total_s(resident, ring)
        point = Point(len(resident), total_s, resident, len(self.demand.streamed))
        return self.option(point, ring)

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

    def _with_ring(self, ring_extents: int, *, coarse: bool) -> list[Option]:
        if self.held is not None:
            return [self._as_held(self.held)]
        ring = self._ring(ring_extents)
        if (ring, coarse) in self._options:
            return self._options[ring, coarse]
        steps = COARSE_STEPS if coarse else STEPS
        points = pareto(self.worst, ring, least_extents=self.least_extents, steps=steps)
        if self.demand.policy is SwapPolicy.SWAP:
            points = points[:1]
        found = [self.option(point, ring) for point in points]
        self._options[ring, coarse] = found
        return found

    def fewest_resident(self, ring_extents: int) -> int:
        """Extents that no choice with that ring does without."""
        if self.held is not None:
            return len(self.held.resident_extents)
        ring = self._ring(ring_extents)
        if ring not in self._fewest:
            forced = forced_residents(self.worst, ring)
            self._fewest[ring] = max(self.least_extents, len(forced))
        return self._fewest[ring]

    def _ring(self, ring_extents: int) -> int:
        """The ring by which it streams; no ring, where it must, is one that never stops a copy."""
        if not self.may_stream:
            return 0
        return ring_extents or len(self.demand.streamed)

    def resident(self) -> Option:
        """The choice that keeps everything that it may keep."""
        return self.options(0)[-1]

    def _as_held(self, held: Held) -> Option:
        """The one choice of a pod that runs; it uses its own slots of a ring of any size."""
        if not self._options:
            resident = frozenset(held.resident_extents)
            total_s = self.worst.total_s(resident, held.ring_extents)
            point = Point(len(resident), total_s, resident, held.streamed_extents)
            self._options[0, False] = [self.option(point, held.ring_extents)]
        return self._options[0, False][0]

    def penalty_ns(self, option: Option) -> int:
        """Time that one preemption makes a job with that plan do again."""
        if self._unseen is not None:
            return cost_ns(self._unseen.penalty_s)
        key = (option.point.resident, option.ring_extents)
        if key not in self._penalties:
            seconds = restart_penalty_s(self.worst, *key) if option.point.streamed_extents else 0.0
            self._penalties[key] = cost_ns(seconds)
        return self._penalties[key]

    def later_ns(self, option: Option) -> int:
        """How much longer a job with that plan may take among the other tasks of the set.

        Also where nobody is preempted: after a job's own stream and between jobs an agent goes on
        with the first extents of that task's next job, one at a time, until another job comes. The
        one that is under way then cannot be called back (P4 in docs/design/theory.md), and
        it may come from a slower tier than any of this task's.
        """
        return self.displaced_ns if option.point.streamed_extents else 0

    def first_ns(self, option: Option, *, preemptible: bool) -> int:
        """How long one of its program's first jobs may keep others waiting; 0 if nothing is known.

        One that learns gives the device away between modules, and so does one of a task whose jobs
        yield, which may take as long for a layer. One that has an arena, of a task whose jobs do
        not, has it to its end.
        """
        section_s, extra_s = self.demand.first_section_s, self.demand.first_extra_s
        if section_s is None:
            return 0
        at_once_ns = cost_ns(section_s * self._margin + self.dispatch_s) + self.later_ns(option)
        if preemptible:
            return max(at_once_ns, self.yields_within_ns(option))
        whole_ns = option.section_ns + cost_ns(extra_s * self._margin) + self.later_ns(option)
        return max(at_once_ns, whole_ns)

    def budget_ns(self, option: Option) -> int | None:
        """How long a job of a Soft task with that plan has its rank, by its mean times.

        None without mean times, and where holding its jobs to that would gain nothing. Of a running
        pod it is what its agent holds them to: each job by itself, of which a release may have
        several.
        """
        if self.mean is None or self.calls > 1:
            return None
        later_ns = self.later_ns(option)
        key = (option.point.resident, option.ring_extents)
        if key not in self._means_s:
            self._means_s[key] = self.mean.total_s(*key)
        budget_ns = cost_ns(self._means_s[key] + self.dispatch_s) + later_ns
        if self.held is not None and self.held.yielding is not None:
            budget_ns = cost_ns(self.held.job_time_s)
        yields_ns = self.yields_within_ns(option)
        return budget_ns if budget_ns + yields_ns < option.cost_ns + later_ns else None

    def least_charge(self, option: Option, *, preemptible: bool, hard: bool = True) -> Choice:
        """No more than what `planned` charges for that plan, and the memory that it takes."""
        later_ns = self.later_ns(option)
        budget_ns = self.budget_ns(option) if preemptible or not hard else None
        demand_ns = option.cost_ns + self.calls * later_ns if self.guaranteed else 0
        section_ns = option.section_ns + later_ns
        return Choice(
            option.extents + (self.parked_extents if preemptible else 0),
            demand_ns if budget_ns is None else min(budget_ns, demand_ns),
            min(section_ns, self.layer_ns) if preemptible else section_ns,
        )

    def least_ever(self, *, may_yield: bool) -> list[Choice]:
        """Choices that no plan of the task beats with less, whatever the ring; without a curve.

        A release computes, and copies what is not resident; of the extents the full ones count.
        """
        copy_s = self.worst.copy_s
        sizes = self.demand.layout.extent_sizes
        whole = [s for s, size in zip(copy_s, sizes, strict=True) if size == max(sizes)]
        each_s = min(whole, default=0.0) / max(1, self.worst.link_count)
        fewest = self.fewest_resident(self.span + 1)
        level = math.floor(len(whole) - self.worst.release_compute_s / each_s) if each_s else 0
        most = self.most_extents
        kinks = sorted({fewest, *(r for r in (level, level + 1) if fewest < r < most), most})
        held = self.held is not None or self.demand.policy is SwapPolicy.SWAP
        choices = []
        for resident in kinks[:1] if held else kinks:
            copied_s = each_s * max(0, len(whole) - resident)
            worst_s = max(self.worst.release_compute_s, copied_s if self.calls == 1 else 0.0)
            if self.mean is not None:
                worst_s = min(worst_s, self.mean.release_compute_s)
            spent_ns = max(0, cost_ns(worst_s + self.calls * self.dispatch_s + self.between_s) - 1)
            whole_job = not (may_yield or self.demand.trains)
            whole_job = whole_job and self.calls == 1 and self.mean is None
            section_ns = spent_ns if whole_job else 0
            choices.append(Choice(resident, spent_ns if self.guaranteed else 0, section_ns))
        return choices

    def planned(self, option: Option, *, preemptible: bool, hard: bool = True) -> PlannedJob:
        """The task with that plan, as admission's charges see it.

        `hard`: deadlines of the device are hard, so only a job that yields may count by its mean.
        """
        later_ns = self.later_ns(option)
        demand_ns = option.cost_ns + self.calls * later_ns if self.guaranteed else 0
        budget_ns = self.budget_ns(option) if preemptible or not hard else None
        if budget_ns is not None:
            demand_ns = budget_ns + (self.yields_within_ns(option) if preemptible else 0)
        return PlannedJob(
            deadline_ns=self.deadline_ns if self.guaranteed else None,
            cost_ns=demand_ns,
            section_ns=option.section_ns + later_ns,
            layer_ns=self.yields_within_ns(option) if preemptible else self.layer_ns,
            penalty_ns=self.penalty_ns(option) if preemptible else 0,
            calls=self.calls,
            streams=option.point.streamed_extents > 0,
            flight_ns=cost_ns(self.worst.start_delay_s) if option.point.streamed_extents else 0,
            by_mean=budget_ns is not None,
        )

    def option(self, point: Point, ring: int) -> Option:
        """A point of the curve of that ring with its costs."""
        worst_s = point.total_s + self.calls * self.dispatch_s + self.between_s
        longest_s = worst_s
        if self.calls > 1 and self.demand.layout.layer_count:
            longest_s = self.worst.call_s(point.resident, ring) + self.dispatch_s
        if self.demand.trains and self.demand.first_section_s is not None:
            longest_s = self.demand.first_section_s * self._margin + self.dispatch_s
        return Option(
            point=point,
            extents=point.resident_extents,
            job_time_s=worst_s,
            cost_ns=cost_ns(worst_s) if self.guaranteed else 0,
            work_ns=cost_ns(worst_s),
            section_ns=cost_ns(longest_s),
            ring_extents=ring,
        )


def displacement_s(device: DeviceCapacity, homes: Iterable[str], size_bytes: int) -> float:
    """How long links from these tiers may go on with what they have begun, seconds.

    A job that streams is dispatched after all of it: an agent begins no stream before the one that
    it displaces has ended on every link (P3, for each link of the set). That is also the most for
    which an extent copied ahead for another task's next job can hold it up: a link never serves
    more at a time than `in_flight`, whatever it is for.
    """
    links = [device.tiers[name].link for name in set(homes)]
    margin = device.margins.bandwidth
    longest_s = max((link.slowed(margin).flight_s(size_bytes) for link in links), default=0.0)
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
    streaming = {t.demand.domain for t in tasks if t.must_stream or t.always_streams}
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
    """Slots of each domain's ring that running pods use, or that streaming tasks need at least."""
    held = {task.demand.domain: 0 for task in tasks}
    for task in tasks:
        least = task.least_ring if task.held is None else task.held.ring_extents
        held[task.demand.domain] = max(held[task.demand.domain], least)
    return held


def _most_at_once(layout: ArenaLayout, streamed: Collection[int]) -> int:
    """Most of these extents that one layer reads."""
    ends = zip(layout.first_extent, layout.last_extent, strict=True)
    at_once = (sum(e in streamed for e in range(first, last + 1)) for first, last in ends)
    return max(at_once, default=0) if streamed else 0


def _widest(layout: ArenaLayout) -> tuple[int, int]:
    """The extents of the widest layer, and the first layer that is so wide."""
    ends = zip(layout.first_extent, layout.last_extent, strict=True)
    spans = [last - first + 1 for first, last in ends]
    widest = max(spans, default=0)
    return widest, spans.index(widest) if spans else 0
