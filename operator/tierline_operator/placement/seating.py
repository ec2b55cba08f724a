"""How one task comes to its seats: from its claims, by trying devices, or by a changed spec.

Devices are tried from the least loaded on. A device whose promised time and the task's own least
time (all weights resident) exceed all of its time is passed over without a plan: a necessary
condition, exact where it says no. A task without a profile is first measured (measuring.py), alone
or, where no device is free, while the tasks of one run; its other pods wait for the measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from tierline_api.devices.device import DeviceKind
from tierline_api.objects.conditions import Reason
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTaskSpec
from tierline_api.objects.optin import Standing
from tierline_api.objects.realtime import Criticality
from tierline_api.schema.quantities import format_quantity
from tierline_operator.placement.books.book import Ask, Book
from tierline_operator.placement.books.holding import among, by_its_plan, misfit
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.relief import Row, relief
from tierline_operator.placement.books.rules import WHOLE_DEVICE
from tierline_operator.placement.books.seats import Claim, DeviceKey, Seat, TaskKey
from tierline_operator.placement.books.verdict import Refusal
from tierline_operator.placement.entry import NOWHERE, Entry
from tierline_operator.placement.needs.demands import (
    Alike,
    Demands,
    Unasked,
    contradiction,
    until_measured,
)
from tierline_operator.placement.needs.fitting import misfit as node_misfit
from tierline_operator.placement.needs.remeasuring import factor_on, raised
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.held import Held
from tierline_operator.planning.overruns import factor_of
from tierline_operator.planning.request import TaskDemand

_FOR_WANT_OF_MEMORY: Final = {
    *(Reason.DEADLINE_INFEASIBLE, Reason.MEMORY_INSUFFICIENT, Reason.RING_TOO_SMALL),
}
_LOOKED_AT: Final = 8
"""So many devices are looked at in a turn to add one more to what is there."""


class Seating:
    """Finds and keeps the seats of tasks."""

    def __init__(self, book: Book, ask: Ask, profile: Callable[[Entry], MemProfile | None]) -> None:
        self._book = book
        self._ask = ask
        self._profile = profile
        self._alike = Alike()
        self._order = 0

    def demand(
        self, entry: Entry, ledger: Ledger, held: Held | None = None, *, as_stated: bool = False
    ) -> TaskDemand | Unasked:
        """The task's demand on a device by its granted spec, or a pod's by what it holds.

        With the times that over-runs showed, or with those that profile and spec state.
        """
        asked = self._demand(entry, entry.spec, entry.demands, ledger, as_stated=as_stated)
        if held is None:
            return asked
        if isinstance(asked, Unasked) or misfit(asked, held) is not None:
            size = ledger.device.extent_bytes if ledger.device else held.extent_bytes
            if held.extent_bytes != size:
                return Unasked(
                    Reason.CHANGE_REFUSED,
                    f"its pod's plan is in extents of {format_quantity(held.extent_bytes)}, and "
                    f"the device has extents of {format_quantity(size)} now, which takes a new pod",
                )
            return by_its_plan(entry.task, entry.spec, held, self._book.rules(ledger))
        return among(asked, held)

    def _demand(
        self,
        entry: Entry,
        spec: MemTaskSpec,
        demands: Demands,
        ledger: Ledger,
        *,
        as_stated: bool = False,
        changes: MemTaskSpec | None = None,
    ) -> TaskDemand | Unasked:
        wrong = contradiction(spec, entry.granted)
        if wrong is not None:
            return wrong
        profile = self._profile(entry)
        if profile is None:
            return Unasked(
                Reason.PROFILE_MISSING,
                f"MemProfile/{entry.profile_name} is not in namespace {entry.key.namespace}; "
                "apply it again",
            )
        if ledger.device is None:
            return Unasked(Reason.NODE_GONE, f"device {ledger.key} is gone")
        node = ledger.key.node
        factor = 1.0 if as_stated else factor_on(entry.longer, node, spec, profile)
        device, alike = ledger.device, self._alike
        return demands.of(entry.task, spec, profile, device, alike, factor, changes=changes)

    def overran(self, entry: Entry, seat: Seat, took_s: float) -> bool:
        """Note that jobs of a pod took so long; returns whether it is planned otherwise by that."""
        ledger, profile, node = self._book.ledger(seat.place), self._profile(entry), seat.place.node
        if seat.held is None or seat.plan is None or not ledger.usable or profile is None:
            return False
        asked = self.demand(entry, ledger, seat.held, as_stated=True)
        if took_s <= seat.plan.call_s or isinstance(asked, Unasked):
            return False
        if not asked.layout.layer_count:
            return False  # by its plan alone: its layers are not those of the profile
        known = factor_on(entry.longer, node, entry.spec, profile)
        capacity = self._book.capacity(ledger)
        held = seat.held
        needed = factor_of(
            *(asked, capacity, held.resident_extents, held.ring_extents),
            *(held.home_of_extent, took_s),
        )
        learned = raised(known, needed, entry.spec, profile)
        if learned is not None:
            entry.longer[node] = learned
        return learned is not None

    def matching(self, entry: Entry) -> Iterator[Ledger]:
        """Devices of the kind and model that the task wants, the least loaded first."""
        return (ledger for ledger in self._book.by_load() if entry.runs_on(ledger.device))

    # Nodes

    def unfit(self, entry: Entry, ledger: Ledger) -> str:
        """Why none of the pods that wait can run on a device's node, as a clause; "" if one can."""
        return self._next_for(entry, ledger)[1]

    def unfit_seat(self, entry: Entry, seat: Seat) -> str:
        """Why the pod of a seat cannot run there, as a clause; "" if it can, or does."""
        claim = entry.claims.get(seat.claim) if seat.claim else None
        if claim is not None and claim.place is not None:
            return ""
        return self._misfit(entry, claim, seat.place.node)

    def _misfit(self, entry: Entry, claim: Claim | None, node: str) -> str:
        worker = self._book.workers.get(node)
        return claim.misfit(node, worker) if claim else node_misfit(worker, entry.needs)

    def _next_for(self, entry: Entry, ledger: Ledger) -> tuple[Claim | None, str]:
        """The claim that gets the next seat there, None for one that is kept free; or why none."""
        node, first = ledger.key.node, ""
        waiting: list[Claim | None] = [*entry.unseated()]
        if entry.missing > len(waiting):
            waiting.append(None)
        for claim in waiting:
            why = self._misfit(entry, claim, node)
            if not why:
                return claim, ""
            first = first or why
        return None, first

    def fitting(self, entry: Entry) -> Iterator[Ledger]:
        """Those of the matching devices on whose nodes a pod that waits can run."""
        return (ledger for ledger in self.matching(entry) if not self.unfit(entry, ledger))

    # From claims

    def sync(self, entry: Entry) -> set[DeviceKey]:
        """Give every claim its seat as far as there are seats; returns devices to prove again."""
        touched: set[DeviceKey] = set()
        for seat in list(entry.seats):
            if seat.claim is not None and seat.claim not in entry.claims:
                seat.leave()
                touched.add(seat.place)
                if seat.standing != Standing.PLANNED:
                    self._remove(entry, seat)
            elif seat.claim is None and not self._suits(entry, seat):
                touched.add(self._remove(entry, seat))
        for claim in sorted(
            (c for c in entry.claims.values() if c.place), key=lambda c: (c.allocated, c.key)
        ):
            touched |= self._sit_as_allocated(entry, claim)
        touched |= self._take_hint(entry)
        free = [seat for seat in entry.seats if seat.claim is None and not entry.leaving]
        for claim in entry.unseated():
            fits = (s for s in free if self._may_have(entry, claim, s))
            for fit in islice(fits, 1):
                fit.claim = claim.key
                free.remove(fit)
        # A place that is kept free is in the way of a pod that cannot run there.
        surplus = len(entry.seats) + len(entry.unseated()) - entry.wanted
        for seat in sorted(entry.seats, key=lambda seat: -seat.order):
            if surplus > 0 and seat.claim is None:
                touched.add(self._remove(entry, seat))
                surplus -= 1
        return touched

    def _may_have(self, entry: Entry, claim: Claim, seat: Seat) -> bool:
        """Whether a claim may have a place that was kept free, and that nobody holds unseen."""
        taken = self._book.ledger(seat.place).runs_unclaimed(claim.pod_key)
        return not taken and not self._misfit(entry, claim, seat.place.node)

    def _suits(self, entry: Entry, seat: Seat) -> bool:
        suits = entry.runs_on(self._book.ledger(seat.place).device)
        return suits and not self._misfit(entry, None, seat.place.node)

    def _sit_as_allocated(self, entry: Entry, claim: Claim) -> set[DeviceKey]:
        if claim.place is None:
            return set()
        seat = entry.seat_for(claim.key)
        if seat is not None and seat.place == claim.place:
            return {seat.place} if seat.agree(claim) else set()
        touched = set()
        if seat is not None:
            touched.add(self._remove(entry, seat))
        free = next((s for s in entry.seats if s.claim is None and s.place == claim.place), None)
        if free is None:
            free = self._add(entry, claim.place, claim, order=claim.order)
        free.claim = claim.key
        free.agree(claim)
        return touched | {claim.place}

    def _take_hint(self, entry: Entry) -> set[DeviceKey]:
        """Keep the place that was kept before a restart; the proof says whether it still holds."""
        hint, entry.hint = entry.hint, None
        if hint is None or entry.seats or entry.leaving or hint not in self._book.ledgers:
            return set()
        if not entry.wanted or self._profile(entry) is None:
            return set()
        self._add(entry, hint, None)
        return {hint}

    # By trying

    def find_incrementally(self, entry: Entry, work: int) -> tuple[int, set[TaskKey]]:
        """Add the missing seats to what is there; returns work done and tasks touched.

        Only the least loaded devices are looked at, and none is noted as refusing: what does not
        fit with the plans that are there may fit when all of a device are planned again.
        """
        done = 0
        changed: set[TaskKey] = set()
        if entry.leaving or self._profile(entry) is None:
            return done, changed
        for ledger in islice(self.fitting(entry), _LOOKED_AT):
            demand = self.demand(entry, ledger)
            if ledger.key not in entry.untested or ledger.closed or isinstance(demand, Unasked):
                continue
            while entry.missing and done < work and ledger.refusal_of(demand) is None:
                if self.unfit(entry, ledger):
                    break
                done += 1
                proven = self._book.try_incrementally(ledger, demand)
                if proven is None:
                    break
                seat = self._take(entry, ledger, demand)
                changed |= self._book.grant_incrementally(ledger, seat, proven)
            if not entry.missing or done >= work:
                break
        return done, changed

    def find(self, entry: Entry, work: int) -> tuple[int, set[TaskKey]]:
        """Try untested devices for the missing seats; returns work done and tasks touched."""
        if entry.leaving:
            entry.untested = NOWHERE
            return 0, set()
        if self._profile(entry) is None:
            return self._find_alone(entry)
        done = 0
        changed: set[TaskKey] = set()
        for ledger in self.matching(entry):
            while ledger.key in entry.untested and done < work:
                refusal, worked = self._seat(entry, ledger)
                done += worked
                if refusal is not None:
                    self._note_refusal(entry, ledger, refusal)
                    continue
                changed |= {seat.task for seat in ledger.seats}
                if not entry.missing:
                    entry.untested = NOWHERE
            if not entry.untested or done >= work:
                break
        else:
            entry.untested = NOWHERE
        if entry.missing and entry.refusal is None:
            entry.refusal = self._nowhere(entry)
        if entry.missing and not entry.untested:
            self._look_for_relief(entry)
        return done, changed

    def _look_for_relief(self, entry: Entry) -> None:
        """Where it came nearest to a place: which pods would make room by starting again."""
        nearest = entry.refusal
        ledger = self._book.ledgers.get(nearest.device) if nearest and nearest.device else None
        if nearest is None or ledger is None or nearest.relief is not None:
            return
        found = ""
        demand = self.demand(entry, ledger) if nearest.reason in _FOR_WANT_OF_MEMORY else None
        if isinstance(demand, TaskDemand) and not ledger.closed:
            rows: list[Row] = [(seat, seat.demand) for seat in ledger.seats if seat.demand]
            found = relief(self._book, ledger, [*rows, (None, demand)], self._asked_again)
        entry.refusal = replace(nearest, relief=found)

    def _asked_again(self, seat: Seat, ledger: Ledger) -> TaskDemand | Unasked | Standing:
        """The demand of the next pod of a seat."""
        return self._ask(replace(seat, held=None), ledger)

    @staticmethod
    def _note_refusal(entry: Entry, ledger: Ledger, refusal: Refusal) -> None:
        """Remember where the task came nearest to a place."""
        entry.refused_by(ledger.key)
        entry.over_quota |= refusal.reason is Reason.QUOTA_EXCEEDED
        nearest = entry.refusal
        if (
            nearest is None
            or nearest.device in {None, ledger.key}
            or refusal.distance < nearest.distance
        ):
            entry.refusal = refusal

    def _seat(self, entry: Entry, ledger: Ledger) -> tuple[Refusal | None, int]:
        """Seat it on that device, or say why not; and how much work that took."""
        claim, unfit = self._next_for(entry, ledger)
        if unfit:
            return self._not_schedulable(ledger, unfit), 0
        closed = ledger.why_closed(entry.key.namespace, claim.pod_key if claim else None)
        if closed:
            return Refusal(Reason.PENDING, closed, ledger.key), 0
        demand = self.demand(entry, ledger)
        if isinstance(demand, Unasked):
            return Refusal(demand.reason, demand.sentence, ledger.key), 0
        refused = self._refused_unasked(entry, ledger, demand)
        if refused is not None:
            return refused, 0
        if len(ledger.planned) >= self._book.crowded_from:
            proven = self._book.try_incrementally(ledger, demand)
            if proven is not None:
                self._book.grant_incrementally(ledger, self._take(entry, ledger, demand), proven)
                return None, 1
        together = [*(d for d, _ in ledger.planned), demand]
        answer, refusal = self._book.try_set(ledger, together)
        if answer is not None:
            self._take(entry, ledger, demand)
            self._book.grant(ledger, [seat for seat in ledger.seats if seat.demand], answer)
        elif refusal is not None:
            ledger.refuse(demand, refusal)
        return refusal, WHOLE_DEVICE * len(together)

    def _nowhere(self, entry: Entry) -> Refusal:
        """Why no device is to be had at all."""
        for ledger in self.matching(entry):
            return self._not_schedulable(ledger, self.unfit(entry, ledger))
        wants = entry.task.spec.device.kind.value
        return Refusal(Reason.NO_MATCHING_DEVICE, f"no device is of kind {wants}")

    @staticmethod
    def _not_schedulable(ledger: Ledger, unfit: str) -> Refusal:
        sentence = f"node {ledger.key.node}: {unfit}"
        return Refusal(Reason.NOT_SCHEDULABLE, sentence, ledger.key)

    def _refused_unasked(self, entry: Entry, ledger: Ledger, demand: TaskDemand) -> Refusal | None:
        """Why it has no room there, where that takes no plan; the first refusal has figures."""
        known = ledger.refusal_of(demand)
        if known is not None and (entry.refusal is not None or known.has_figures):
            return known
        if entry.refusal is None or not self._overloads(demand, ledger):
            return None
        busy = Refusal(Reason.DEADLINE_INFEASIBLE, f"{ledger.key} is busy", ledger.key)
        ledger.refuse(demand, busy)
        return busy

    def _take(self, entry: Entry, ledger: Ledger, demand: TaskDemand) -> Seat:
        """The seat that was found for it."""
        seat = self._add(entry, ledger.key, self._next_for(entry, ledger)[0])
        seat.demand = demand
        if entry.granted is None:
            entry.granted = entry.task.spec
            entry.granted_generation = entry.task.metadata.generation
        return seat

    def _overloads(self, demand: TaskDemand, ledger: Ledger) -> bool:
        """Whether the device has too little time left even with all weights resident."""
        rules = self._book.rules(ledger)
        least = 0.0
        for one in [demand, *(d for d, _ in ledger.planned)]:
            if one.criticality == Criticality.HARD:
                busy_s = sum(one.compute_s) * rules.margins.compute + rules.dispatch_s
                least += busy_s / one.period_s
        return least > 1

    def _find_alone(self, entry: Entry) -> tuple[int, set[TaskKey]]:
        """A device on which a pod of the task is measured: one on which nothing has a plan."""
        untested, entry.untested = entry.untested, NOWHERE
        name = entry.profile_name
        if any(seat.measured for seat in entry.seats):
            entry.refusal = Refusal(Reason.PROFILING, "waits until its first pod has been measured")
            return 0, set()
        if not entry.unseated():
            entry.refusal = Refusal(
                Reason.PROFILE_MISSING,
                f"there is no MemProfile/{name} and no pod of the task to be measured; "
                "apply the profile or start a pod",
            )
            return 0, set()
        budget = entry.task.spec.memory.budget_bytes
        matching = list(self.fitting(entry))
        free = [k for k in matching if k.only_measures and not k.measures_now]
        free.sort(
            key=lambda k: (
                (bool(k.seats), k.device.fast_bytes < budget, -k.device.fast_bytes, k.key)
                if k.device
                else (True, True, 0, k.key)
            )
        )
        if free:
            whose = self._next_for(entry, free[0])[0]
            self._book.measure(free[0], self._add(entry, free[0].key, whose))
            return 0, {entry.key}
        soon = next((k for k in matching if k.only_measures), None)
        if not matching:
            entry.refusal = self._nowhere(entry)
            return 0, set()
        if soon is None:
            return self._measure_among_others(entry, [k for k in matching if k.key in untested])
        entry.refusal = Refusal(
            Reason.PROFILE_MISSING,
            f"there is no MemProfile/{name}; it is measured on {soon.key} when another task has "
            "been measured there",
        )
        return 0, set()

    def _measure_among_others(
        self, entry: Entry, ledgers: Sequence[Ledger]
    ) -> tuple[int, set[TaskKey]]:
        """A device whose tasks can spare it as much time at once as it says that a job takes.

        A few are looked at, the least loaded first; the others stay untested.
        """
        nearest: Refusal | None = None
        worked = 0
        ledgers = [ledger for ledger in ledgers if not ledger.closed] or ledgers[:1]
        entry.untested = frozenset(ledger.key for ledger in ledgers[_LOOKED_AT:])
        for ledger in ledgers[:_LOOKED_AT]:
            demand = self.until_measured(entry, entry.task.spec, ledger)
            if isinstance(demand, Unasked):
                refusal = Refusal(demand.reason, demand.sentence, ledger.key)
            elif ledger.closed:
                closed = ledger.why_closed(entry.key.namespace)
                refusal = Refusal(Reason.PENDING, closed, ledger.key)
            else:
                together = [*(d for d, _ in ledger.planned), demand]
                worked += WHOLE_DEVICE * len(together)
                answer, no = self._book.try_set(ledger, together)
                if answer is not None:
                    entry.untested = NOWHERE
                    seat = self._take(entry, ledger, demand)
                    self._book.measure(ledger, seat, sharing=True)
                    self._book.grant(ledger, [s for s in ledger.seats if s.demand], answer)
                    return worked, {s.task for s in ledger.seats}
                refusal = no or Refusal(Reason.PENDING, f"{ledger.key} is busy", ledger.key)
            nearest = min(nearest or refusal, refusal, key=lambda one: one.distance)
        if nearest is not None:
            entry.refusal = Refusal(
                Reason.PROFILE_MISSING,
                f"there is no MemProfile/{entry.profile_name}, and no device that matches is empty "
                f"to measure the task alone; nor can {nearest.device} measure it together with its "
                f"tasks: {nearest.sentence}. Or apply the profile, or delete the tasks of a "
                "device: tasks that are applied together are measured one after the other",
            )
        return worked, set()

    def until_measured(
        self, entry: Entry, spec: MemTaskSpec, ledger: Ledger
    ) -> TaskDemand | Unasked:
        """Its demand on a device to be measured there while others run; why that cannot be."""
        limit_s = spec.realtime.measuring_limit_s
        wrong = contradiction(spec, entry.granted)
        if wrong is not None:
            return wrong
        if ledger.device is None:
            return Unasked(Reason.NODE_GONE, f"device {ledger.key} is gone")
        if ledger.device.kind is not DeviceKind.CPU:
            return Unasked(
                Reason.PROFILE_MISSING,
                "on a GPU a task is measured alone, because what it copies and launches outside "
                "of its jobs would make others late",
            )
        if limit_s is None:
            return Unasked(
                Reason.PROFILE_MISSING,
                "it does not say for how long a job may have the device; state "
                "spec.realtime.measuringLimit",
            )
        return until_measured(entry.task, spec, ledger.device.extent_bytes, limit_s)

    # By a changed spec

    def change(self, entry: Entry) -> set[TaskKey]:
        """Grant the spec as it is now if it holds on every device of the task, else say why not."""
        wanted = entry.task.spec
        places = sorted({seat.place for seat in entry.seats})
        by_limit = self._profile(entry) is None and any(s.sharing for s in entry.seats)
        granted: list[tuple[Ledger, Admitted, dict[int, TaskDemand]]] = []
        for place in places:
            ledger = self._book.ledger(place)
            mine = [seat for seat in ledger.seats if seat.task == entry.key and seat.demand]
            if not mine:
                continue
            asked = (
                self.until_measured(entry, wanted, ledger)
                if by_limit
                else self._demand(
                    entry, wanted, entry.changed_demands, ledger, changes=entry.granted
                )
            )
            if isinstance(asked, Unasked):
                entry.change_refused = Refusal(asked.reason, asked.sentence, place)
                return {entry.key}
            changed: dict[int, TaskDemand] = {}
            for seat in mine:
                wrong = misfit(asked, seat.held) if seat.held is not None else None
                if wrong is not None:
                    entry.change_refused = _needs_a_new_pod(wrong, place)
                    return {entry.key}
                changed[id(seat)] = among(asked, seat.held) if seat.held is not None else asked
            rows: list[Row] = [(s, changed.get(id(s), s.demand)) for s in ledger.seats if s.demand]
            answer, refusal = self._book.try_set(ledger, [demand for _, demand in rows])
            if refusal is not None:
                found = relief(self._book, ledger, rows, self._asked_again_if_changed(entry, asked))
                entry.change_refused = replace(refusal, relief=found)
            if answer is None:
                return {entry.key}
            granted.append((ledger, answer, changed))
        touched = {entry.key}
        for ledger, answer, changed in granted:
            for seat in ledger.seats:
                seat.demand = changed.get(id(seat), seat.demand)
                touched.add(seat.task)
                if id(seat) in changed:
                    seat.standing = Standing.PROFILING if by_limit else Standing.PLANNED
                    seat.reason = ""
            self._book.grant(ledger, [s for s in ledger.seats if s.demand], answer)
        entry.granted, entry.change_refused = wanted, None
        entry.granted_generation = entry.task.metadata.generation
        entry.demands, entry.changed_demands = entry.changed_demands, Demands()
        return touched

    def _asked_again_if_changed(self, entry: Entry, asked: TaskDemand) -> Ask:
        return lambda seat, on: asked if seat.task == entry.key else self._asked_again(seat, on)

    # Seats

    def _add(
        self, entry: Entry, place: DeviceKey, claim: Claim | None, order: int | None = None
    ) -> Seat:
        if order is None:
            order = self._order
        self._order = max(self._order, order) + 1
        seat = Seat(entry.key, place, order, claim.key if claim else None)
        entry.seats.append(seat)
        entry.seats.sort(key=lambda s: s.order)
        ledger = self._book.ledger(place)
        ledger.namespaces.add(entry.key.namespace)
        ledger.seats.append(seat)
        ledger.seats.sort(key=lambda s: s.order)
        return seat

    def _remove(self, entry: Entry, seat: Seat) -> DeviceKey:
        entry.seats.remove(seat)
        self._book.ledger(seat.place).seats.remove(seat)
        return seat.place


def _needs_a_new_pod(wrong: str, place: DeviceKey) -> Refusal:
    return Refusal(
        Reason.CHANGE_REFUSED, f"its pod holds a plan, and {wrong}; delete the pod", place
    )
