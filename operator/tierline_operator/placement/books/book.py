"""The book of all devices: which task sits where, tried and proven against what each device has.

A task that asks for a seat is tried on one device at a time, together with all that sit there, and
within the quotas of every namespace on that device. Pure: values in, values changed only here.
Invariant: what stands Planned on a device was admitted together, by the plans that running pods
hold, within what other devices of the node leave of the tiers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tierline_api.objects.conditions import Reason
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.optin import Standing
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.demand import NS
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.placement.books.addition import ProvenSets
from tierline_operator.placement.books.ledger import Ledger, differs
from tierline_operator.placement.books.order import Order
from tierline_operator.placement.books.proof import prove, together
from tierline_operator.placement.books.quota import Usage, excess, total, usage_of
from tierline_operator.placement.books.rules import KindRules, Rules
from tierline_operator.placement.books.seats import DeviceKey, PodKey, Seat, TaskKey
from tierline_operator.placement.books.verdict import Refusal, refusal_of
from tierline_operator.placement.needs.demands import Unasked, demoted
from tierline_operator.placement.needs.fitting import Worker
from tierline_operator.placement.needs.remeasuring import differ
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.incremental import ProvenSet
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

Ask = Callable[[Seat, Ledger], TaskDemand | Unasked | Standing]
"""The demand of a seat's task on a device; its standing while it is to be measured first."""


class Book:
    """The ledgers of all devices."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.ledgers: dict[DeviceKey, Ledger] = {}
        self.nodes: dict[str, MemNode] = {}
        self.workers: dict[str, Worker] = {}
        """The Nodes of the cluster; a MemNode may be there without one, and one without it."""
        self.quotas: dict[str, dict[str, MemQuota]] = defaultdict(dict)
        self._by_node: dict[str, set[DeviceKey]] = defaultdict(set)
        self.unclaimed: dict[str, dict[PodKey, DeviceKey | None]] = defaultdict(dict)
        """By node, pods that run there without a claim; its ledgers share that."""
        self._order = Order()
        self._keys: frozenset[DeviceKey] | None = None
        self._proven = ProvenSets()
        self.measuring: set[DeviceKey] = set()
        """Devices on which tasks are measured, or wait because they were."""

    def put_node(self, node: MemNode) -> set[DeviceKey]:
        """Take a node as it is now; returns the devices of which something changed."""
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is not None and not differs(before, node):
            for key in self._by_node[node.name]:
                self.ledgers[key].node = node
            return set()
        return self._redraw(node.name)

    def drop_node(self, name: str) -> set[DeviceKey]:
        """Forget a node; returns its devices."""
        self.nodes.pop(name, None)
        return self._redraw(name)

    def put_worker(self, worker: Worker) -> set[DeviceKey]:
        """Take a Node as it is now; returns the devices of which something changed."""
        before = self.workers.get(worker.name)
        self.workers[worker.name] = worker
        return set() if before == worker else set(self._by_node[worker.name])

    def drop_worker(self, name: str) -> set[DeviceKey]:
        """Forget a Node; returns its devices."""
        return set(self._by_node[name]) if self.workers.pop(name, None) else set()

    def _redraw(self, name: str) -> set[DeviceKey]:
        node = self.nodes.get(name)
        there = {d.name: d for d in node.status.devices} if node else {}
        for device in there:
            self.ledger(DeviceKey(name, device))
        touched = set(self._by_node[name])
        for key in touched:
            self.ledgers[key].node = node
            self.ledgers[key].device = there.get(key.device)
        return touched

    def ledger(self, key: DeviceKey) -> Ledger:
        """The ledger of a device, also of one that is not there (yet, or any more)."""
        if key not in self.ledgers:
            node = self.nodes.get(key.node)
            device = node.device(key.device) if node else None
            self.ledgers[key] = Ledger(key, node, device, unclaimed=self.unclaimed[key.node])
            self._by_node[key.node].add(key)
            self._rank(self.ledgers[key])
            self._keys = None
        return self.ledgers[key]

    @property
    def keys(self) -> frozenset[DeviceKey]:
        """All devices; one object for all callers, until a device comes or goes."""
        if self._keys is None:
            self._keys = frozenset(self.ledgers)
        return self._keys

    @property
    def crowded_from(self) -> int:
        """With so many on a device, planning all of them again is tried last."""
        return self._rules.crowded_from

    def of_node(self, name: str) -> frozenset[DeviceKey]:
        """The devices of a node, which share its tiers."""
        return frozenset(self._by_node[name])

    def by_load(self) -> Iterator[Ledger]:
        """The devices from the least loaded on, as it was when the first was asked for."""
        return map(self.ledgers.__getitem__, self._order.keys())

    def forget_if_empty(self, key: DeviceKey) -> None:
        """Drop the ledger of a device that is gone and that nobody names any more."""
        ledger = self.ledgers[key]
        if ledger.device is None and not ledger.seats and not ledger.orphans:
            del self.ledgers[key]
            self._by_node[key.node].discard(key)
            self._order.drop(key)
            self._proven.drop(key)
            self.measuring.discard(key)
            self._keys = None

    def measure(self, ledger: Ledger, seat: Seat, *, sharing: bool = False) -> None:
        """Begin to measure the task of a seat, alone or `sharing` the device."""
        seat.standing, seat.bound, seat.measured = Standing.PROFILING, True, True
        seat.sharing = sharing
        self.measuring.add(ledger.key)

    def _rank(self, ledger: Ledger) -> None:
        self._order.put(ledger.key, ledger.load, len(ledger.seats))

    def rules(self, ledger: Ledger) -> KindRules:
        """The rules for a device that is there."""
        if ledger.device is None:
            raise LookupError(f"device {ledger.key} is gone: it has no rules")
        return self._rules.by_kind[ledger.device.kind]

    def capacity(self, ledger: Ledger) -> DeviceCapacity:
        """The capacity that the seats of a device share."""
        taken: dict[str, int] = defaultdict(int)
        for key in self._by_node[ledger.key.node]:
            if key != ledger.key:
                for tier, size in self.ledgers[key].tier_bytes().items():
                    taken[tier] += size
        capacity = ledger.capacity(self.rules(ledger), taken)
        return replace(capacity, headroom=self._rules.headroom)

    def try_set(
        self, ledger: Ledger, demands: Sequence[TaskDemand]
    ) -> tuple[Admitted, None] | tuple[None, Refusal]:
        """Would these hold together there, within every quota?"""
        capacity = self.capacity(ledger)
        try:
            answer = together([self._limited(demand) for demand in demands], capacity)
        except ValueError as error:
            return None, Refusal(Reason.INVALID_SPEC, str(error), ledger.key)
        if isinstance(answer, Infeasible):
            return None, refusal_of(answer, ledger.key)
        over = self._over_quota(ledger, demands, answer.plans, capacity)
        return (None, over) if over else (answer, None)

    def grant(self, ledger: Ledger, seats: Sequence[Seat], answer: Admitted) -> None:
        """Write what was admitted into the ledger; `seats` are in the order of the answer."""
        for seat, plan in zip(seats, answer.plans, strict=True):
            seat.grant(plan, answer.scheduling)
        ledger.load = answer.utilisation
        self._proven.drop(ledger.key)
        self._rank(ledger)

    def try_incrementally(self, ledger: Ledger, demand: TaskDemand) -> ProvenSet | None:
        """Does one more hold with the plans that are there? None: not so, or not so quickly."""
        capacity = self.capacity(ledger)
        limited = self._limited(demand)
        proven = self._proven.with_one_more(ledger, limited, capacity)
        if proven is None:
            return None
        demands = [*(d for d, _ in ledger.planned), demand]
        plans = [*(plan for _, plan in ledger.planned), proven.plans[-1]]
        return None if self._over_quota(ledger, demands, plans, capacity) else proven

    def grant_incrementally(self, ledger: Ledger, seat: Seat, proven: ProvenSet) -> set[TaskKey]:
        """Write what was proven for one more into its seat; returns whose promise is another now.

        A task that was promised an exact response is now promised its deadline, which holds
        whichever task comes.
        """
        changed = {seat.task}
        for other in ledger.seats:
            if other.plan is not None and other.demand is not None:
                promised = other.plan.response_s
                if promised is not None and promised != other.demand.deadline_s:
                    other.plan = replace(other.plan, response_s=other.demand.deadline_s)
                    changed.add(other.task)
        seat.plan, seat.scheduling = proven.plans[-1], _in_force(ledger)
        ledger.load = sum(
            cost / NS / demand.period_s
            for demand, cost in zip(proven.demands, proven.lean.costs, strict=True)
        )
        self._proven.keep(ledger.key, proven)
        self._rank(ledger)
        return changed

    def prove(self, ledger: Ledger, ask: Ask, as_stated: Ask) -> list[Seat]:
        """Rule again on every task that sits there; returns the seats that are given up.

        `as_stated` asks with the times that were stated before jobs over-ran: where what runs does
        not hold with longer ones, it goes on by these (remeasuring.py).
        """
        ledger.load, ledger.unknown, ledger.unproven = 0.0, "", ""
        for key in self._by_node[ledger.key.node]:
            self.ledgers[key].forget_refusals()
        self._proven.drop(ledger.key)
        lost: list[Seat] = []
        asking: list[Seat] = []
        for seat in list(ledger.seats):
            seat.promised, seat.demand, seat.plan = seat.plan or seat.promised, None, None
            seat.reason = seat.unproven = ""
            if not ledger.usable:
                why = f"device {ledger.key} is not there or has failed"
                lost += self._lose(seat, why)
                continue
            asked = ask(seat, ledger)
            if isinstance(asked, Standing):
                seat.standing = asked
            elif isinstance(asked, Unasked):
                lost += self._lose(seat, asked.sentence)
                runs = asked.reason is not Reason.NOT_SCHEDULABLE  # its claim is not allocated
                if runs and seat.bound and not seat.measured:
                    ledger.unknown = f"device {ledger.key} runs {seat.task}: {asked.sentence}"
            else:
                seat.demand = asked
                asking.append(seat)
        self._fall_back(ledger, asking, as_stated)
        lost += self._rule(ledger, asking)
        ledger.seats = [seat for seat in ledger.seats if seat not in lost]
        ledger.namespaces = {seat.task.namespace for seat in ledger.seats}
        if any(seat.measured for seat in ledger.seats):
            self.measuring.add(ledger.key)
        else:
            self.measuring.discard(ledger.key)
        self._rank(ledger)
        return lost

    def _fall_back(self, ledger: Ledger, asking: Sequence[Seat], as_stated: Ask) -> None:
        """Let what runs go on by the times stated, if it does not hold by those measured."""
        stated: dict[int, TaskDemand] = {}
        for index, seat in enumerate(asking):
            asked = as_stated(seat, ledger) if seat.held is not None else None
            if isinstance(asked, TaskDemand) and seat.demand and differ(asked, seat.demand):
                stated[index] = asked
        if not stated:
            return
        running = {i: s.demand for i, s in enumerate(asking) if s.bound and s.demand}
        capacity = self.capacity(ledger)
        answer = together([self._limited(demand) for demand in running.values()], capacity)
        if isinstance(answer, Admitted):
            return
        aside = [demoted(d) if i in stated else d for i, d in running.items()]
        others_hold = isinstance(
            together([self._limited(demand) for demand in aside], capacity), Admitted
        )
        names = ", ".join(sorted({str(asking[index].task) for index in stated}))
        why = f"with the times that jobs of {names} took of {ledger.key}, {answer.sentence}"
        ledger.unproven = f"{ledger.key} is not proven to hold by what runs there: {why}"
        for index in running:
            if index in stated or not others_hold:
                asking[index].unproven = why
        for index, demand in stated.items():
            asking[index].demand = demand

    def _rule(self, ledger: Ledger, asking: Sequence[Seat]) -> list[Seat]:
        if not asking:
            return []
        demands = [seat.demand for seat in asking if seat.demand]
        capacity = self.capacity(ledger)
        proof = prove(
            [self._limited(demand) for demand in demands],
            [seat.bound and not (seat.measured and ledger.holds) for seat in asking],
            capacity,
        )
        lost: list[Seat] = []
        for seat, ruling in zip(asking, proof.rulings, strict=True):
            seat.standing = ruling.standing
            seat.grant(ruling.plan, proof.answer.scheduling)
            seat.reason = ruling.refusal.sentence if ruling.refusal else ""
            if ruling.standing == Standing.DEMOTED and seat.demand:
                seat.demand = demoted(seat.demand)
            if ruling.standing == Standing.LOST:
                seat.demand = None
                lost += self._lose(seat, seat.reason)
        ledger.load = proof.answer.utilisation
        return lost

    @staticmethod
    def _lose(seat: Seat, why: str) -> list[Seat]:
        seat.standing, seat.reason = Standing.LOST, why
        return [] if seat.bound else [seat]

    def _limited(self, demand: TaskDemand) -> TaskDemand:
        """Under a quota for fast memory a task takes what its deadline needs, and no more."""
        limits = self.quotas.get(demand.domain, {}).values()
        if demand.policy is SwapPolicy.AUTO and any(
            quota.spec.fast_memory_bytes is not None for quota in limits
        ):
            return replace(demand, policy=SwapPolicy.STREAM)
        return demand

    def _over_quota(
        self,
        ledger: Ledger,
        demands: Sequence[TaskDemand],
        plans: Sequence[TaskPlan],
        capacity: DeviceCapacity,
    ) -> Refusal | None:
        limited = [d for d in sorted({demand.domain for demand in demands}) if self.quotas.get(d)]
        if not limited:
            return None
        here = usage_of(list(zip(demands, plans, strict=True)), capacity)
        before = ledger.usage(capacity)
        for domain in limited:
            if domain in before and not here[domain].exceeds(before[domain]):
                continue  # a quota that was lowered stops growth, not what runs
            over = excess(
                self.quotas[domain].values(), domain, self._elsewhere(domain, ledger), here[domain]
            )
            if over:
                return Refusal(Reason.QUOTA_EXCEEDED, over.sentence, ledger.key, over.missing_bytes)
        return None

    def used_by(self, namespaces: AbstractSet[str]) -> dict[str, Usage]:
        """The use of all devices by each of these namespaces."""
        parts: dict[str, list[Usage]] = {space: [] for space in namespaces}
        for ledger in self.ledgers.values():
            if ledger.usable and not ledger.namespaces.isdisjoint(namespaces):
                for space, usage in ledger.usage(self.capacity(ledger)).items():
                    if space in parts:
                        parts[space].append(usage)
        return {space: total(of) for space, of in parts.items()}

    def _elsewhere(self, domain: str, but: Ledger) -> list[Usage]:
        return [
            ledger.usage(self.capacity(ledger))[domain]
            for key, ledger in self.ledgers.items()
            if key != but.key
            and ledger.usable
            and any(demand.domain == domain for demand, _ in ledger.planned)
        ]


def _in_force(ledger: Ledger) -> Scheduling:
    """The scheduling that the plans of others there need; one more adds nothing."""
    ways = {seat.scheduling for seat in ledger.seats if seat.plan is not None}
    return next(
        (way for way in ways if way != Scheduling.NON_PREEMPTIVE), Scheduling.NON_PREEMPTIVE
    )
