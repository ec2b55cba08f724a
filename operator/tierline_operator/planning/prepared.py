"""Tasks with their homes and curves, asked for several sizes of memory and ways of scheduling.

For each the search goes over a few ring sizes, and for each of these over resident sets
(search/residents.py); planner.py says how that answers the question whether a set is admitted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tierline_operator.admission.demand import NS, DemandTest
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.grants import picked, plans_of, rings_in_use
from tierline_operator.planning.refusals.reasons import (
    deadline_missed,
    memory_exceeded,
    resident_all_the_same,
    workspace_unknown,
)
from tierline_operator.planning.search.bound import Bound
from tierline_operator.planning.search.options import Task, leanest_rings, rings_to_try
from tierline_operator.planning.search.residents import Effort, Outcome, Search, Starts
from tierline_operator.planning.working_memory import workspace_bytes

_REFINEMENTS = 6
CURVES: Final = 1200
"""So many curves are made for one way of scheduling, and those for two rings: the second one serves
102 of 104 sets that stream (`rings_to_try`). Sets of up to 150 tasks have all their rings tried."""


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
            nearest=plans_of(search, outcome, rings),
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
        rings = rings_in_use(search, outcome.chosen, nearest.rings)
        return Lean(
            plans=plans_of(search, outcome, nearest.rings),
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
        used_rings = rings_in_use(search, outcome.chosen, rings)
        if give_spare:
            limit = self.room - sum(used_rings.values())
            chosen = search.fill(
                outcome.chosen, limit, lambda task: task.takes_spare, outcome.preemptible
            )
            filled = search.judge(chosen, outcome.preemptible)
            # Sustainability says that the fill holds; the answer must not depend on believing it.
            outcome = filled if filled.ok else outcome
            used_rings = rings_in_use(search, outcome.chosen, rings)
        options = picked(search, outcome.chosen)
        costs, _ = search.charged(outcome.chosen, outcome.preemptible)
        load = sum(cost / task.period_ns for task, cost in zip(self.tasks, costs, strict=True))
        used = outcome.used + sum(used_rings.values())
        return Admitted(
            plans=plans_of(search, outcome, rings),
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
                    if task.must_stream and task.homes and not options[index].point.streamed_extents
                ),
                *(
                    workspace_unknown(task.demand)
                    for task in self.tasks
                    if not task.demand.workspace_known
                ),
            ),
        )
