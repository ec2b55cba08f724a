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

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final

from tierline_operator.admission.demand import NS, DemandTest
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.admission.response import worst_responses
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.homes.placing import Placement, placements, runs
from tierline_operator.planning.refusals.blame import blamed, with_enough_memory, with_more_time
from tierline_operator.planning.refusals.reasons import (
    NOT_PROVEN,
    begins_too_late,
    deadline_missed,
    memory_exceeded,
    resident_all_the_same,
    sporadic_tasks,
    workspace_unknown,
    yield_elsewhere,
)
from tierline_operator.planning.request import DeviceCapacity, TaskDemand
from tierline_operator.planning.search.bound import Bound
from tierline_operator.planning.search.options import (
    Option,
    Task,
    displacement_s,
    leanest_rings,
    rings_to_try,
)
from tierline_operator.planning.search.residents import FEW, Effort, Outcome, Search, Starts
from tierline_operator.planning.working_memory import contexts_exceeded, workspace_bytes
from tierline_operator.planning.writeback import turns_s

_REFINEMENTS = 6
CURVES: Final = 1200
"""So many curves are made for one way of scheduling, and those for two rings: the second one serves
102 of 104 sets that stream (`rings_to_try`). Sets of up to 150 tasks have all their rings tried."""

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


class Prepared:
    """Tasks with their homes and curves, to be asked for several sizes of fast memory.

    A set with a preserved workspace never yields, whatever scheduling is asked (writeback.py).
    """

    def __init__(self, tasks: Sequence[Task], *, overlay: bool) -> None:
        """Curves are made when they are first asked for, and kept.

        `overlay`: programs of the device give their workspaces back between jobs.
        """
        self.tasks = tasks
        self.overlay = overlay
        self.workspace_bytes = workspace_bytes([task.demand for task in tasks], overlay=overlay)
        self._asked: dict[int, dict[tuple[Scheduling, bool], _Planner]] = {}
        self.bounds: dict[Hashable, Bound] = {}
        due = [task for task in tasks if task.guaranteed]
        self.test = DemandTest([task.period_ns for task in due], [task.deadline_ns for task in due])

    @property
    def plenty_bytes(self) -> int:
        """Fast memory of which no plan uses more."""
        size = self.tasks[0].demand.layout.extent_bytes
        each = (2 * t.demand.layout.extent_count + t.parked_extents + 10 for t in self.tasks)
        return sum(each) * size + self.workspace_bytes

    def holds(self, fast_bytes: int, scheduling: Scheduling, *, tight: bool = True) -> bool:
        """Whether the set is admitted: the verdict of `answer`, without plans or reasons."""
        if not self.tasks:
            return True
        nearest = self._planner(fast_bytes, scheduling, tight=tight).found.nearest
        return nearest is not None and nearest.outcome.ok

    def fits(self, fast_bytes: int, scheduling: Scheduling) -> bool:
        """Whether some plans fit, deadlines or not."""
        found = self._planner(fast_bytes, scheduling).found if self.tasks else None
        return found is None or found.nearest is not None

    def nearest_way(self, fast_bytes: int, ways: Sequence[Scheduling]) -> Scheduling:
        """Of ways that do not admit the set the one whose search came nearest to it."""
        return min(ways, key=lambda way: self._planner(fast_bytes, way).found.distance)

    def cut_short(self, fast_bytes: int, scheduling: Scheduling) -> bool:
        """Whether there are plans that were not tried."""
        return bool(self.tasks) and self._planner(fast_bytes, scheduling).found.cut_short

    def answer(
        self, fast_bytes: int, scheduling: Scheduling, *, give_spare: bool, tight: bool = True
    ) -> Admitted | Infeasible:
        """Plans for that much fast memory, or why there are none.

        `tight=False` leaves out rings that no task wants that may have more memory.
        """
        if not self.tasks:
            return Admitted((), 0.0, 0.0, float("inf"), None, 0)
        return self._planner(fast_bytes, scheduling, tight=tight).answer(give_spare=give_spare)

    def _planner(self, fast_bytes: int, scheduling: Scheduling, *, tight: bool = True) -> _Planner:
        """One that was asked for keeps what it found, for the last two sizes of memory."""
        if any(task.demand.preserved_bytes for task in self.tasks):
            scheduling = Scheduling.NON_PREEMPTIVE
        if fast_bytes not in self._asked:
            while len(self._asked) > 1:
                self._asked.pop(next(iter(self._asked)))
            self._asked[fast_bytes] = {}
        asked = self._asked[fast_bytes]
        if (scheduling, tight) not in asked:
            asked[scheduling, tight] = _Planner(self, fast_bytes, scheduling, tight=tight)
        return asked[scheduling, tight]

    def lean(self, fast_bytes: int, scheduling: Scheduling, *, share: float = 0.0) -> Lean | None:
        """The admitted set with no memory given away beyond what deadlines need; None if refused.

        Nothing is shed either: a task that is to stream keeps what the search gave it. `share` of
        what is left is given away where it lowers the use of the device most.
        """
        planner = self._planner(fast_bytes, scheduling)
        nearest = planner.found.nearest
        if nearest is None or not nearest.outcome.ok:
            return None
        return planner.lean(nearest, share)


def _distance(refusal: Infeasible) -> tuple[float, float]:
    """Sorts refusals: the one that least is missing for comes first."""
    late = refusal.shortfall_s
    missing = refusal.missing_bytes
    return (
        float("inf") if missing is None else float(missing),
        float("inf") if late is None else late,
    )


@dataclass(frozen=True)
class Lean:
    """An admitted set as its proof sees it, in the order of the tasks; costs in nanoseconds."""

    plans: tuple[TaskPlan, ...]
    costs: tuple[int, ...]
    sections: tuple[int, ...]
    penalties: dict[int, int]
    """The cost of a preemption of each preemptible task, by index."""
    rings: dict[str, int]
    first_ns: int
    """How long a program that starts may keep the others waiting."""
    contained: tuple[int, ...]
    """Soft tasks whose jobs go on without a rank when they take longer than by their mean."""
    soft_only: bool
    """Whether some that keep the device count by their mean, as nobody's deadline is hard."""
    extents: int
    """All of fast memory but the workspaces: residents, rings, parked."""


@dataclass(frozen=True)
class _Nearest:
    """The outcome that holds, or came nearest."""

    search: Search
    rings: dict[str, int]
    outcome: Outcome


@dataclass(frozen=True)
class _Tried:
    """Rings that were considered."""

    search: Search
    rings: dict[str, int]
    room: int
    """Extents that the rings leave."""
    fits: bool
    may_hold: bool


@dataclass(frozen=True)
class _Found:
    nearest: _Nearest | None
    """None: nothing fits."""
    hopeless: bool
    """No memory would be enough."""
    impossible: bool
    """No plan within the memory holds with these rings, whether it was tried or not."""
    least_extents: int
    cut_short: bool
    """There are plans that were not tried."""

    @property
    def distance(self) -> tuple[bool, float]:
        """Sorts what was found for several ways of scheduling."""
        return (
            self.hopeless,
            float("inf") if self.nearest is None else self.nearest.outcome.late_ns,
        )


class _Planner:
    def __init__(
        self, prepared: Prepared, fast_bytes: int, scheduling: Scheduling, *, tight: bool
    ) -> None:
        self.tight = tight
        self.tasks = tasks = prepared.tasks
        self.test = prepared.test
        self.scheduling = scheduling
        self.fast_bytes = fast_bytes
        self.extent_bytes = tasks[0].demand.layout.extent_bytes
        self.workspace_bytes = prepared.workspace_bytes
        self.overlay = prepared.overlay
        self.effort = Effort(len(tasks))
        self._bounds = prepared.bounds
        self.starts: tuple[Starts, ...] = ("first", "more") if self.effort.bounded else ("all",)
        self.most_rings = max(2, CURVES // len(tasks))
        self.room = (fast_bytes - self.workspace_bytes) // self.extent_bytes

    @cached_property
    def found(self) -> _Found:
        """The search's result."""
        hopeless = not self._holds_with_unlimited_memory()
        if self.effort.bounded and self._bound.refuses(self.room):
            near = self._near()
            if near is not None:
                return _Found(near, hopeless, impossible=True, least_extents=0, cut_short=False)
        tried: list[_Tried] = []
        nearest: _Nearest | None = None

        def rings_in_turn() -> Iterator[_Tried]:
            yield from tried
            known = [one.rings for one in tried]
            wished = [] if known else rings_to_try(self.tasks, tight=self.tight)
            for rings in wished:
                if sum(one.fits for one in tried) >= self.most_rings:
                    return
                tried.append(self._tried(rings))
                yield tried[-1]
            if self.tight and not any(one.fits for one in tried):
                tried.append(self._tried(leanest_rings(self.tasks)))
                yield tried[-1]

        for starts in self.starts:
            for one in rings_in_turn():
                if one.fits and one.may_hold:
                    outcome = one.search.run(one.room, starts)
                    if outcome is not None and (
                        nearest is None or outcome.ok or outcome.late_ns < nearest.outcome.late_ns
                    ):
                        nearest = _Nearest(one.search, one.rings, outcome)
                if (nearest is not None and nearest.outcome.ok) or self.effort.spent:
                    break
                if hopeless and one.fits:
                    break
            if (nearest is not None and nearest.outcome.ok) or hopeless or self.effort.spent:
                break
        fitting = [one for one in tried if one.fits]
        if nearest is None and fitting:
            one = fitting[0]
            nearest = _Nearest(one.search, one.rings, one.search.near(one.room))
        least = min(one.search.least() + sum(one.rings.values()) for one in tried)
        more_rings = len(fitting) == self.most_rings
        impossible = hopeless or not (more_rings or any(one.may_hold for one in fitting))
        return _Found(
            nearest,
            hopeless,
            impossible=impossible,
            least_extents=least,
            cut_short=(self.effort.spent or more_rings) and not impossible,
        )

    @property
    def _bound(self) -> Bound:
        """A bound on every plan, whatever the rings."""
        yields = self.scheduling is not Scheduling.NON_PREEMPTIVE
        if yields not in self._bounds:
            choices = [task.least_ever(may_yield=yields) for task in self.tasks]
            due = [index for index, task in enumerate(self.tasks) if task.guaranteed]
            self._bounds[yields] = Bound(self.test, choices, due)
        return self._bounds[yields]

    def _near(self) -> _Nearest | None:
        """A plan that fits, to show what is missing; None if none of some rings does."""
        for rings in rings_to_try(self.tasks):
            room = self.room - sum(rings.values())
            fewest = sum(task.fewest_resident(rings[task.demand.domain]) for task in self.tasks)
            if fewest > room:
                continue
            search = self._search(rings, coarse=True)
            if search.least() <= room:
                return _Nearest(search, rings, search.near(room))
        return None

    def _tried(self, rings: dict[str, int]) -> _Tried:
        search = self._search(rings)
        room = self.room - sum(rings.values())
        fits = search.least() <= room
        return _Tried(search, rings, room, fits, fits and search.may_hold(room))

    def answer(self, *, give_spare: bool) -> Admitted | Infeasible:
        found = self.found
        if found.nearest is None:
            need = found.least_extents * self.extent_bytes + self.workspace_bytes
            held = [task.demand for task in self.tasks if task.held is not None]
            kept = workspace_bytes(held, overlay=self.overlay)
            return memory_exceeded(
                self.tasks, need, self.fast_bytes, self.workspace_bytes, held_workspace_bytes=kept
            )
        search, rings = found.nearest.search, found.nearest.rings
        outcome = found.nearest.outcome
        if outcome.ok:
            return self._admitted(search, rings, outcome, give_spare=give_spare)
        rings_asked = rings_to_try(self.tasks)[: 2 if self.effort.bounded else None]
        missing = None if found.hopeless else self._missing_bytes(rings_asked)
        return deadline_missed(
            search,
            outcome,
            missing_bytes=missing,
            cut_short=found.cut_short,
            memory_unsure=missing is None and self.effort.spent and not found.hopeless,
            nearest=self._plans(search, outcome, rings),
        )

    def lean(self, nearest: _Nearest, share: float) -> Lean:
        search, outcome = nearest.search, nearest.outcome
        left = self.room - sum(nearest.rings.values()) - outcome.used
        if int(left * share) > 0:
            limit = outcome.used + int(left * share)
            chosen = search.fill(outcome.chosen, limit, preemptible=outcome.preemptible)
            filled = search.judge(chosen, outcome.preemptible)
            outcome = filled if filled.ok else outcome
        costs, sections = search.charged(outcome.chosen, outcome.preemptible)
        rings = self._rings(search, outcome.chosen, nearest.rings)
        return Lean(
            plans=self._plans(search, outcome, nearest.rings),
            costs=tuple(costs),
            sections=tuple(sections),
            penalties=search.going_on_ns(outcome.chosen, outcome.preemptible),
            rings=rings,
            first_ns=search.first(outcome.chosen, outcome.preemptible)[0],
            contained=tuple(search.contained(outcome.chosen, outcome.preemptible)),
            soft_only=not set(search.by_mean(outcome.chosen, outcome.preemptible))
            <= outcome.preemptible,
            extents=outcome.used + sum(rings.values()),
        )

    def _holds_with_unlimited_memory(self) -> bool:
        """A necessary condition: all weights resident, however little memory there is."""
        search = self._search({})
        chosen = [len(options) - 1 for options in search.options]
        if search.judge(chosen).ok:
            return True
        if self.scheduling is Scheduling.NON_PREEMPTIVE:
            return False
        if any(task.always_streams for task in self.tasks):
            return True  # a yielding job pays for its stream: it may take some that do and some not
        # Nobody streams here, so the more yield the shorter the sections, at no cost but resuming.
        return search.judge(chosen, search.may_yield).ok

    def _search(self, rings: dict[str, int], *, coarse: bool = False) -> Search:
        return Search(
            *(self.tasks, rings, self.test, self.scheduling, self.effort),
            coarse=coarse,
            bounds=self._bounds,
        )

    def _missing_bytes(self, rings_tried: Sequence[dict[str, int]]) -> int | None:
        """Memory that would be enough, beyond what there is: not the least, but proven."""
        plenty = sum(task.demand.layout.extent_count + task.parked_extents for task in self.tasks)
        enough: list[tuple[int, int, Search]] = []
        if self.effort.bounded and self._bound.refuses(plenty):
            return None
        self.effort = Effort(len(self.tasks))  # what was searched before was another question
        for number, rings in enumerate(rings_tried):
            if self.effort.spent:
                break
            search = self._search(rings)
            outcome = search.run(plenty, self.starts[0]) if search.may_hold(plenty) else None
            if outcome is not None and outcome.ok:
                enough.append((outcome.used + sum(rings.values()), number, search))
        if not enough:
            return None
        need, number, search = min(enough, key=lambda item: item[:2])
        ring = sum(rings_tried[number].values())
        # With less room the search takes another way: only a room that was tried is an answer.
        low, high = self.room - ring, need - ring
        high = high if self._holds(search, high) else plenty
        for _ in range(_REFINEMENTS):
            middle = (low + high) // 2
            if middle in {low, high} or self.effort.spent:
                break
            low, high = (low, middle) if self._holds(search, middle) else (middle, high)
        return (high + ring) * self.extent_bytes + self.workspace_bytes - self.fast_bytes

    def _holds(self, search: Search, limit: int) -> bool:
        outcome = search.run(limit, self.starts[0]) if search.may_hold(limit) else None
        return outcome is not None and outcome.ok

    def _admitted(
        self, search: Search, rings: dict[str, int], outcome: Outcome, *, give_spare: bool
    ) -> Admitted:
        outcome = search.shed(outcome, lambda task: task.must_stream)
        used_rings = self._rings(search, outcome.chosen, rings)
        if give_spare:
            limit = self.room - sum(used_rings.values())
            chosen = search.fill(
                outcome.chosen, limit, lambda task: task.takes_spare, outcome.preemptible
            )
            filled = search.judge(chosen, outcome.preemptible)
            # Sustainability says that the fill holds; the answer must not depend on believing it.
            outcome = filled if filled.ok else outcome
            used_rings = self._rings(search, outcome.chosen, rings)
        picked = _picked(search, outcome.chosen)
        costs, _ = search.charged(outcome.chosen, outcome.preemptible)
        load = sum(cost / task.period_ns for task, cost in zip(self.tasks, costs, strict=True))
        used = outcome.used + sum(used_rings.values())
        return Admitted(
            plans=self._plans(search, outcome, rings),
            utilisation=load,
            critical_time_s=outcome.critical_ns / NS,
            slack_s=-outcome.late_ns / NS,
            blocker=None if outcome.blocker is None else self.tasks[outcome.blocker].demand.name,
            fast_bytes_used=used * self.extent_bytes + self.workspace_bytes,
            workspace_bytes=self.workspace_bytes,
            scheduling=self.scheduling if outcome.preemptible else Scheduling.NON_PREEMPTIVE,
            remarks=(
                *(
                    resident_all_the_same(search, outcome, index)
                    for index, task in enumerate(self.tasks)
                    if task.must_stream and task.homes and not picked[index].point.streamed_extents
                ),
                *(
                    workspace_unknown(task.demand)
                    for task in self.tasks
                    if not task.demand.workspace_known
                ),
            ),
        )

    def _rings(
        self, search: Search, chosen: Sequence[int], rings: dict[str, int]
    ) -> dict[str, int]:
        """Rings no larger than what streams through them."""
        needed = dict.fromkeys(rings, 0)
        for task, option in zip(self.tasks, _picked(search, chosen), strict=True):
            domain = task.demand.domain
            streamed = min(_slots(task, option, rings[domain]), option.point.streamed_extents)
            needed[domain] = max(needed[domain], streamed)
        return needed

    def _plans(
        self, search: Search, outcome: Outcome, rings: dict[str, int]
    ) -> tuple[TaskPlan, ...]:
        responses = self._responses(search, outcome)
        contained = search.contained(outcome.chosen, outcome.preemptible)
        lost_ns = search.going_on_ns(outcome.chosen, outcome.preemptible)
        plans = []
        for index, (task, option, response_s) in enumerate(
            zip(self.tasks, _picked(search, outcome.chosen), responses, strict=True)
        ):
            granted = task_plan(task, option, rings[task.demand.domain], response_s)
            first_ns = task.first_ns(option, preemptible=index in outcome.preemptible)
            granted = replace(granted, first_s=first_ns / NS)
            if index in outcome.preemptible:
                granted = replace(
                    granted,
                    preemptible=True,
                    parked_bytes=task.parked_extents * self.extent_bytes,
                    penalty_s=lost_ns[index] / NS,
                )
            budget_ns = task.budget_ns(option) if index in contained else None
            if budget_ns is not None:
                granted = replace(granted, job_time_s=budget_ns / NS, call_s=budget_ns / NS)
            plans.append(granted)
        return tuple(plans)

    def _responses(self, search: Search, outcome: Outcome) -> list[float | None]:
        """Bounds of response times, seconds; None for tasks that have none or count by their mean.

        What lost its rank is to the others like a task without a deadline.
        """
        rows = sporadic_tasks(search, outcome)
        contained = search.contained(outcome.chosen, outcome.preemptible)
        lower = [replace(rows[index], deadline_s=None) for index in contained]
        first_ns, index = search.first(outcome.chosen, outcome.preemptible)
        if first_ns:
            starting = replace(rows[index], deadline_s=None, section_s=first_ns / NS)
            lower.append(starting)
        bounds = worst_responses([*rows, *lower])[: len(rows)]
        for index in search.by_mean(outcome.chosen, outcome.preemptible):
            bounds[index] = None
        later = (task.jitter_s for task in self.tasks)
        return [None if s is None else s + j for s, j in zip(bounds, later, strict=True)]


def _picked(search: Search, chosen: Sequence[int]) -> list[Option]:
    return [options[at] for options, at in zip(search.options, chosen, strict=True)]


def _slots(task: Task, option: Option, ring: int) -> int:
    """Slots that a task may use of its domain's ring."""
    return ring if task.held is None else option.ring_extents


def task_plan(task: Task, option: Option, ring: int, response_s: float | None) -> TaskPlan:
    """The grant of `task` with that choice and a ring of `ring` extents in its domain."""
    demand, held = task.demand, option.point.resident
    sizes = demand.layout.extent_sizes
    return TaskPlan(
        name=demand.name,
        extent_bytes=demand.layout.extent_bytes,
        extent_count=demand.layout.extent_count,
        resident_extents=tuple(sorted(held)),
        ring_extents=min(_slots(task, option, ring), option.point.streamed_extents),
        workspace_bytes=demand.working_bytes,
        homes=runs(task.homes),
        job_time_s=option.job_time_s + task.calls * task.later_ns(option) / NS,
        calls=task.calls,
        call_s=(option.section_ns + task.later_ns(option)) / NS
        if task.calls > 1
        else option.job_time_s + task.later_ns(option) / NS,
        between_s=task.between_s,
        jitter_s=task.jitter_s,
        compute_s=task.compute_s,
        streamed_bytes=sum(size for extent, size in enumerate(sizes) if extent not in held),
        response_s=response_s,
        layer_s=task.yields_within_ns(option) / NS,
        homes_by=task.homes_by,
    )
