"""Placement over all nodes: events in, verdicts out; deterministic, no I/O, no clock.

What it holds true after every `settle`:

* an allocated claim sits where it is allocated, whatever else was thought: claims are the truth;
* a pod that runs without a claim keeps others from its device, or from all of its node if it is
  not known which that is;
* what stands Planned on a device was proven together (book.py), so no deadline is promised twice;
* what a running pod holds is what it was given: nobody's coming changes its plan (holding.py);
* where a task is measured nothing has a plan; a measured task waits for another (measuring.py);
* a task has at most one seat a live claim, and places kept free up to its `replicas`;
* a task that waits was refused by every device since that device last became roomier.

Waiting tasks are tried in their turn, the older first; a younger task that fits where an older one
does not goes ahead. Each is tried on the least loaded device first. Work is bounded: an event makes
only its own device's proofs be made again, a waiting task is tried again only on devices that
became roomier, and one `settle` does at most `Rules.work_per_settle` for waiting tasks. When many
wait, each is first added to what is there (books/addition.py), and a young task that fits so goes
ahead of an old one for which a device must be planned again.

Restart: feed nodes, profiles, quotas, tasks and claims in any order, then settle. Places that were
kept free are taken up again after all claims, where they still hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from tierline_api.objects.conditions import Reason
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.optin import Standing
from tierline_operator.placement.books.book import Book
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.quota import Usage
from tierline_operator.placement.books.rules import WHOLE_DEVICE, Rules
from tierline_operator.placement.books.seats import (
    Claim,
    ClaimKey,
    DeviceKey,
    PodKey,
    Seat,
    TaskKey,
)
from tierline_operator.placement.books.verdict import Verdict
from tierline_operator.placement.entry import NOWHERE, Entry, needs_of_template, restored
from tierline_operator.placement.measuring import Measuring, to_be_measured
from tierline_operator.placement.needs.demands import Unasked
from tierline_operator.placement.needs.fitting import Worker
from tierline_operator.placement.orphans import by_notes
from tierline_operator.placement.saying import discreet, verdict_of
from tierline_operator.placement.seating import Seating
from tierline_operator.planning.request import TaskDemand


@dataclass(frozen=True)
class Settled:
    """The result of a settle."""

    changed: frozenset[TaskKey]
    """Tasks of which something new may have to be said."""
    untried: frozenset[TaskKey]
    """Tasks of which nothing is known yet: they are tried in the next settle."""
    more: bool
    """Whether there is more to do: settle again."""


class Fleet:
    """All nodes, tasks and claims, and which task sits where."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._book = Book(self._rules)
        self._profiles: dict[tuple[str, str], MemProfile] = {}
        self._entries: dict[TaskKey, Entry] = {}
        self._claims: dict[ClaimKey, Claim] = {}
        self._of_task: dict[TaskKey, set[ClaimKey]] = {}
        """None empty: a name may never come again."""
        self._unsynced: set[TaskKey] = set()
        self._unproven: set[DeviceKey] = set()
        self._opened: set[DeviceKey] = set()
        self._changed: set[TaskKey] = set()
        self._missing: set[TaskKey] = set()
        self._restless: set[TaskKey] = set()
        self._respec: set[TaskKey] = set()
        self._kept: set[TaskKey] = set()
        self._unmeasured: set[TaskKey] = set()
        self._overran: set[TaskKey] = set()
        self._measuring = Measuring(
            *(self._entries, self._claims, self._unmeasured, self._missing),
            lambda entry: self._profile(entry) is not None,
        )
        self._seating = Seating(self._book, self._ask, self._profile)

    # Events

    def put_node(self, node: MemNode) -> None:
        """A node is there, or changed."""
        self._touch(self._book.put_node(node))

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        self._touch(self._book.drop_node(name))

    def put_worker(self, worker: Worker) -> None:
        """A Node of the cluster is there, or changed."""
        self._touch(self._book.put_worker(worker))

    def drop_worker(self, name: str) -> None:
        """A Node is gone."""
        self._touch(self._book.drop_worker(name))

    def put_profile(self, profile: MemProfile) -> None:
        """A profile is there, or changed."""
        key = (profile.metadata.namespace, profile.name)
        before = self._profiles.get(key)
        if before is not None and before.spec == profile.spec:
            return
        self._profiles[key] = profile
        self._touch_profile(key)

    def drop_profile(self, namespace: str, name: str) -> None:
        """A profile is gone."""
        self._profiles.pop((namespace, name), None)
        self._touch_profile((namespace, name))

    def put_quota(self, quota: MemQuota) -> None:
        """A quota is there, or changed."""
        of = self._book.quotas[quota.metadata.namespace]
        before = of.get(quota.name)
        of[quota.name] = quota
        if before is None or before.spec != quota.spec:
            self._touch_namespace(quota.metadata.namespace)

    def drop_quota(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        self._book.quotas[namespace].pop(name, None)
        self._touch_namespace(namespace)

    def put_task(self, task: MemTask) -> None:
        """A task is there, or changed."""
        key = TaskKey(task.domain, task.name)
        entry = self._entries.get(key)
        if entry is not None and entry.orphaned:
            self._drop_entry(entry)
            entry = None
        if entry is None:
            entry = self._entries[key] = restored(task)
            entry.claims = {name: self._claims[name] for name in self._of_task.get(key, ())}
            self._try_everywhere(entry)
            for claim in entry.claims.values():
                if claim.place:
                    self._book.ledger(claim.place).orphans.discard(claim.key)
                    self._unproven.add(claim.place)
        else:
            self._update(entry, task)
        self._unsynced.add(key)

    def _update(self, entry: Entry, task: MemTask) -> None:
        if task.spec == entry.task.spec:
            # The old object stays: demands are kept by identity.
            entry.task = task.model_copy(update={"spec": entry.task.spec})
            return
        profile = entry.profile_name
        entry.task = task
        entry.idle = False
        entry.needs = needs_of_template(task)
        entry.granted = task.spec if entry.granted == task.spec else entry.granted
        entry.change_refused = entry.refusal = None
        if entry.profile_name != profile:
            self._touch({seat.place for seat in entry.seats})

    def drop_task(self, key: TaskKey) -> None:
        """A task is gone; claims of it that are still allocated keep what is noted in them."""
        entry = self._entries.get(key)
        if entry is None or entry.orphaned:
            return
        self._drop_entry(entry)
        for claim in entry.claims.values():
            self._put_orphan(claim)

    def _drop_entry(self, entry: Entry) -> None:
        del self._entries[entry.key]
        for of in (self._changed, self._unsynced, self._missing, self._restless, self._respec):
            of.discard(entry.key)
        for of in (self._unmeasured, self._kept, self._overran):
            of.discard(entry.key)
        for seat in entry.seats:
            self._leave(seat)

    def put_claim(self, claim: Claim) -> None:
        """A claim is there, or changed."""
        before = self._claims.get(claim.key)
        if before == claim:
            return
        if before is not None and before.task != claim.task:
            self.drop_claim(claim.key)
        if before is not None and before.place and not claim.place:
            self.give_up(claim.key)  # kube-scheduler gave it back: no write of it is under way
        seat = self.seat_of(claim.key)
        asks = claim.needs, claim.barred
        again = before is not None and asks != (before.needs, before.barred) and not claim.place
        if again and seat is not None:
            self._unproven.add(seat.place)  # its pod may not fit there any more
        self._claims[claim.key] = claim
        self._of_task.setdefault(claim.task_key, set()).add(claim.key)
        entry = self._entries.get(claim.task_key)
        if entry is None or entry.orphaned:
            if before is not None and before.place and before.place != claim.place:
                self._drop_orphan(before)
            self._put_orphan(claim)
            return
        if before is None:
            entry.idle = False
        entry.claims[claim.key] = claim
        self._unsynced.add(entry.key)

    def _put_orphan(self, claim: Claim) -> None:
        """A claim whose task is not there takes what is noted in it, or may take anything."""
        if claim.place is None:
            return
        entry = self._entries.get(claim.task_key)
        if claim.held is not None and entry is None:
            entry = by_notes(claim)
        if claim.held is None or entry is None:
            self._drop_orphan(claim)
            self._book.ledger(claim.place).orphans.add(claim.key)
            return
        self._entries[entry.key] = entry
        entry.claims[claim.key] = claim
        self._unsynced.add(entry.key)
        self._book.ledger(claim.place).orphans.discard(claim.key)
        self._touch({claim.place})

    def _drop_orphan(self, claim: Claim) -> None:
        """A claim whose task is not there takes nothing any more."""
        entry = self._entries.get(claim.task_key)
        if entry is not None and entry.claims.pop(claim.key, None) is not None:
            self._unsynced.add(entry.key)
            if not entry.claims:
                self._drop_entry(entry)
        if claim.place:
            self._book.ledger(claim.place).orphans.discard(claim.key)
            self._touch({claim.place})

    def drop_claim(self, key: ClaimKey) -> None:
        """A claim is gone."""
        claim = self._claims.pop(key, None)
        if claim is None:
            return
        of_task = self._of_task[claim.task_key]
        of_task.discard(key)
        if not of_task:
            del self._of_task[claim.task_key]
        entry = self._entries.get(claim.task_key)
        if entry is None or entry.orphaned:
            self._drop_orphan(claim)
            return
        entry.claims.pop(key, None)
        self._unsynced.add(entry.key)

    def put_unclaimed(self, pod: PodKey, node: str, place: DeviceKey | None) -> None:
        """A pod runs on a node without a claim: on that device, None if it is not known."""
        self._book.unclaimed[node][pod] = place
        self._touch(set(self._book.of_node(node)))

    def drop_unclaimed(self, pod: PodKey, node: str) -> None:
        """A pod has a claim again, or runs no more."""
        self._book.unclaimed[node].pop(pod, None)
        self._touch(set(self._book.of_node(node)))

    def keep_no_longer(self, key: TaskKey) -> None:
        """No pod came for the places that are kept free for a task: others may have them."""
        self._entries[key].idle = True
        self._unsynced.add(key)

    @property
    def kept(self) -> AbstractSet[TaskKey]:
        """Tasks for which a place is kept free, as it was when the fleet settled last."""
        return self._kept

    @property
    def rules(self) -> Rules:
        """The administrator's."""
        return self._rules

    def give_up(self, claim: ClaimKey) -> None:
        """A decision for a claim is not written, and cannot be any more: decide again."""
        seat = self.seat_of(claim)
        if seat is not None:
            seat.unbind()
            self._unproven.add(seat.place)

    # Questions

    def seat_of(self, claim: ClaimKey) -> Seat | None:
        """The seat of a claim, once it has one."""
        known = self._claims.get(claim)
        entry = self._entries.get(known.task_key) if known else None
        return entry.seat_for(claim) if entry else None

    def shows(self, place: DeviceKey) -> bool:
        """Whether a device is there: that its MemNode names it, well or not."""
        ledger = self._book.ledgers.get(place)
        return ledger is not None and ledger.device is not None

    def claims_of(self, key: TaskKey) -> list[Claim]:
        """The claims of a task, in the order of their names."""
        return [self._claims[name] for name in sorted(self._of_task.get(key, ()))]

    def verdict(self, key: TaskKey) -> Verdict | None:
        """The verdict on a task; None if there is none of that name."""
        entry = self._entries.get(key)
        if entry is None or entry.orphaned:
            return None
        profile = self._profile(entry)
        matching = partial(self._matching, entry)
        kept_s, devices = self._rules.keep_free_s, len(self._book.ledgers)
        verdict = verdict_of(entry, profile, matching, devices, kept_s)
        return discreet(verdict, key.namespace, self._entries)

    def spec_of(self, key: TaskKey) -> MemTaskSpec | None:
        """The spec by which a task is planned, which is not its newest when that was refused.

        Of a task that is gone, the one by which its pods run; None where nothing is known of it.
        """
        entry = self._entries.get(key)
        return entry.spec if entry is not None else None

    def waiting(self) -> list[TaskKey]:
        """Tasks with a pod or a place missing, in their turn."""
        return self._in_turn(self._missing)

    @property
    def workers(self) -> Mapping[str, Worker]:
        """The Nodes of the cluster, by name."""
        return self._book.workers

    def quotas(self) -> Iterator[tuple[MemQuota, Usage]]:
        """All quotas, each with what its namespace takes of all devices."""
        of = {space: quotas.values() for space, quotas in self._book.quotas.items() if quotas}
        used = self._book.used_by(of.keys())
        for space, quotas in of.items():
            for quota in quotas:
                yield quota, used[space]

    def devices(self) -> dict[DeviceKey, Ledger]:
        """The ledgers of all devices, to be read only."""
        return self._book.ledgers

    # Settling

    def settle(self) -> Settled:
        """Bring everything up to date with the events since the last time."""
        while self._unsynced or self._unproven:
            for key in sorted(self._unsynced):
                self._sync(self._entries[key])
            self._unsynced.clear()
            for device in sorted(self._unproven):
                self._prove(self._book.ledgers[device])
            self._unproven.clear()
            self._take_overruns()
        self._change_specs()
        more = self._place()
        self._end_measuring()
        for key in self._changed:
            # Not before: a task that waits for what an ended pod held is served before the next pod
            # holds.
            for seat in self._entries[key].seats:
                seat.bind()
        # A task that has not been tried yet, and will be in the next settle, has nothing to say.
        later = {key for key in self._changed & self._restless if self._entries[key].unheard}
        changed, self._changed = frozenset(self._changed - later), later
        return Settled(changed, frozenset(later), more or bool(self._unsynced or self._unproven))

    def _sync(self, entry: Entry) -> None:
        """Give every allocated claim its seat, and every other seat a reason to be."""
        self._changed.add(entry.key)
        if any(claim.overran_s is not None for claim in entry.claims.values()):
            self._overran.add(entry.key)
        touched = self._seating.sync(entry)
        self._unproven |= touched
        if not entry.seats:
            entry.granted = entry.granted_generation = entry.change_refused = None
        new = entry.asks_otherwise()
        if entry.missing and (new or entry.refusal is None or self._profile(entry) is None):
            self._try_everywhere(entry)
        self._queue(entry)

    def _queue(self, entry: Entry) -> None:
        """Keep the sets of waiting tasks up to date."""
        if not entry.missing:
            entry.refusal = None
            entry.untested = NOWHERE
        for of, belongs in (
            (self._missing, entry.missing > 0),
            (self._restless, entry.missing > 0 and bool(entry.untested)),
            (self._respec, bool(entry.seats) and entry.granted is not entry.task.spec),
            (self._kept, any(seat.claim is None for seat in entry.seats)),
            (self._unmeasured, self._profile(entry) is None and to_be_measured(entry)),
        ):
            if belongs:
                of.add(entry.key)
            else:
                of.discard(entry.key)

    def _try_everywhere(self, entry: Entry) -> None:
        entry.untested, entry.sharing, entry.over_quota = self._book.keys, True, False

    def _in_turn(self, keys: set[TaskKey]) -> list[TaskKey]:
        return sorted(keys, key=lambda key: self._entries[key].turn)

    def _prove(self, ledger: Ledger) -> None:
        for seat in ledger.seats:
            self._changed.add(seat.task)
        self._open_quotas(ledger)
        for seat in self._book.prove(ledger, self._ask, self._ask_as_stated):
            entry = self._entries[seat.task]
            entry.seats.remove(seat)
            self._try_everywhere(entry)
            self._unsynced.add(entry.key)
        self._measuring.keep(ledger)
        for seat in ledger.seats:
            entry = self._entries[seat.task]
            if entry.granted is None and seat.demand:
                entry.granted = entry.task.spec
                entry.granted_generation = entry.task.metadata.generation
                self._queue(entry)
        # What it gave back of the tiers is room for the other devices of the node.
        self._opened |= self._book.of_node(ledger.key.node)
        self._book.forget_if_empty(ledger.key)

    def _open_quotas(self, ledger: Ledger) -> None:
        """Try tasks that wait for a quota again everywhere: it counts what all devices give."""
        for namespace in ledger.namespaces:
            if not self._book.quotas.get(namespace):
                continue
            for other in self._book.ledgers.values():
                other.forget_quotas_of(namespace)
            for key in self._missing:
                if key.namespace == namespace and self._entries[key].over_quota:
                    self._try_everywhere(self._entries[key])
                    self._restless.add(key)

    def _take_overruns(self) -> None:
        """Plan by what jobs took at worst, where that is more than they were planned with."""
        overran, self._overran = self._overran, set()
        for key in sorted(overran):
            entry = self._entries[key]
            for seat in entry.seats:
                claim = entry.claims.get(seat.claim) if seat.claim else None
                if claim is None or claim.overran_s is None:
                    continue
                if self._seating.overran(entry, seat, claim.overran_s):
                    self._changed.add(key)
                    self._unproven |= self._book.of_node(seat.place.node)

    def _change_specs(self) -> None:
        """Try what people changed in the specs of tasks that have seats."""
        for key in self._in_turn(self._respec):
            entry = self._entries[key]
            places = {seat.place for seat in entry.seats}
            if entry.change_refused is None or places & self._opened:
                self._changed |= self._seating.change(entry)
                self._queue(entry)
                if entry.change_refused is None:
                    # It may ask for less, and hold now by what jobs were measured to take.
                    self._touch(places)

    def _place(self) -> bool:
        """Try the waiting tasks; returns whether some were not tried for want of time."""
        opened, self._opened = self._opened & self._book.keys, set()
        if opened:
            for key in self._missing:
                entry = self._entries[key]
                if not opened <= entry.untested:
                    entry.untested = entry.untested | opened
                entry.sharing = True
            self._restless |= self._missing
        work = self._rules.work_per_settle
        many = len(self._restless) > self._rules.few_waiting
        if many:
            # Something is left for tasks that need a plan of a whole device.
            work = WHOLE_DEVICE + self._place_sharing(work - WHOLE_DEVICE)
        waiting = (self._entries[key] for key in self._restless)
        going = [entry for entry in waiting if not (many and entry.sharing)]
        # Nobody waits for one that is on a long way through all devices.
        for entry in sorted(going, key=lambda entry: (not entry.sharing, entry.turn)):
            if work <= 0:
                return True
            key = entry.key
            done, changed = self._seating.find(entry, work)
            work -= done
            entry.sharing = False
            self._changed |= changed | {key}
            self._queue(entry)
        return bool(self._restless)

    def _place_sharing(self, work: int) -> int:
        """Add the many waiting tasks to what is there, as far as that goes; returns work left."""
        for key in self._in_turn({key for key in self._restless if self._entries[key].sharing}):
            entry = self._entries[key]
            if work <= 0:
                break
            done, changed = self._seating.find_incrementally(entry, work)
            work -= done
            entry.sharing = entry.missing > 0 and work <= 0
            self._changed |= changed
            self._queue(entry)
        return work

    # What the rest asks

    def _ask(self, seat: Seat, ledger: Ledger) -> TaskDemand | Unasked | Standing:
        entry = self._entries[seat.task]
        unfit = self._seating.unfit_seat(entry, seat)
        if unfit:
            sentence = f"node {seat.place.node}: {unfit}"
            return Unasked(Reason.NOT_SCHEDULABLE, sentence)
        standing = self._measuring.standing(seat, ledger) if seat.measured else None
        if standing is Standing.PROFILING and seat.sharing:
            return self._seating.until_measured(entry, entry.spec, ledger)
        return standing or self._seating.demand(entry, ledger, seat.held)

    def _ask_as_stated(self, seat: Seat, ledger: Ledger) -> TaskDemand | Unasked | Standing:
        return self._seating.demand(self._entries[seat.task], ledger, seat.held, as_stated=True)

    def _end_measuring(self) -> None:
        """Rule again where nobody is waited for any more, or somebody waits for too long."""
        self._unproven |= {
            key for key in self._book.measuring if self._measuring.moves(self._book.ledgers[key])
        }

    def _profile(self, entry: Entry) -> MemProfile | None:
        return self._profiles.get((entry.key.namespace, entry.profile_name))

    def _matching(self, entry: Entry) -> list[tuple[Ledger, str]]:
        matching = self._seating.matching(entry)
        return [(ledger, self._seating.unfit(entry, ledger)) for ledger in matching]

    def _leave(self, seat: Seat) -> None:
        ledger = self._book.ledger(seat.place)
        ledger.seats.remove(seat)
        self._unproven.add(seat.place)

    def _touch(self, devices: set[DeviceKey]) -> None:
        self._unproven |= devices

    def _touch_profile(self, key: tuple[str, str]) -> None:
        for entry in self._entries.values():
            if (entry.key.namespace, entry.profile_name) == key:
                self._try_everywhere(entry)
                entry.refusal = None
                self._unsynced.add(entry.key)
                self._touch({seat.place for seat in entry.seats})

    def _touch_namespace(self, namespace: str) -> None:
        """A quota changed: what was refused may fit, and spare memory is given otherwise."""
        for ledger in self._book.ledgers.values():
            ledger.forget_refusals()
        for entry in self._entries.values():
            if entry.key.namespace == namespace:
                self._try_everywhere(entry)
                self._unsynced.add(entry.key)
                self._touch({seat.place for seat in entry.seats})
