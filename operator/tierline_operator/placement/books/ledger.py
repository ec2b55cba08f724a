"""One device's book: its seats, what they take, and the proof that they hold together.

Tiers belong to the node: a device may use what the plans of the node's other devices leave. Homes
are given in the order of admission, so what a device was granted stays its own when another device
of the node takes more.

A device is *closed* to new seats while it runs something whose demand is unknown: a claim whose
MemTask or MemProfile is gone and that notes no plan, a pod whose claim was lost under it, while
tasks are measured on it one by one (measuring.py), or while what runs does not hold by what jobs
were seen to take (remeasuring.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from tierline_api.objects.conditions import Reason
from tierline_api.objects.memnode import Device, Health, MemNode
from tierline_api.objects.optin import Standing
from tierline_operator.placement.books.quota import Usage, tier_bytes, usage_of
from tierline_operator.placement.books.rules import KindRules
from tierline_operator.placement.books.seats import ClaimKey, DeviceKey, PodKey, Seat
from tierline_operator.placement.books.verdict import Refusal
from tierline_operator.planning.answer import TaskPlan
from tierline_operator.planning.from_api import capacity_of, supports_of
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

_MEASURING: Final = {Standing.PROFILING, Standing.MEASURED}


@dataclass
class Ledger:
    """A device and the tasks that sit on it."""

    key: DeviceKey
    node: MemNode | None = None
    device: Device | None = None
    """None while the device is gone and claims still name it."""
    seats: list[Seat] = field(default_factory=list)
    orphans: set[ClaimKey] = field(default_factory=set)
    """Allocated claims of tasks that do not exist, which may take anything (orphans.py)."""
    unclaimed: Mapping[PodKey, DeviceKey | None] = field(default_factory=dict)
    """Pods that run on its node without a claim, each with its device, None if that is unknown."""
    unknown: str = ""
    """Why the demand of a seat is unknown, if one is."""
    unproven: str = ""
    """Why what runs here does not hold by what jobs were measured to take, if it does not."""
    load: float = 0.0
    """The share of its time that is promised."""
    namespaces: set[str] = field(default_factory=set)
    """Of the seats that are there, or were when it was last proven."""
    _refused: dict[int, tuple[TaskDemand, Refusal]] = field(default_factory=dict)
    """Refusals since it last became roomier, one of each that is alike."""

    @property
    def usable(self) -> bool:
        """Whether the device is there and well."""
        return (
            self.device is not None
            and self.node is not None
            and Health.FAILED not in (self.device.health, self.node.status.health)
        )

    @property
    def closed(self) -> bool:
        """Whether nothing new may be placed here."""
        return bool(self.why_closed(""))

    def why_closed(self, namespace: str, pod: PodKey | None = None) -> str:
        """Why nothing new, or not this pod, may be placed here, or nothing.

        As it is said in a namespace.
        """
        if not self.usable:
            return f"device {self.key} is not there or has failed"
        if self.orphans:
            return f"device {self.key} runs {_orphaned(self.orphans, namespace)}"
        others = self.runs_unclaimed(pod)
        if others:
            return f"device {self.key} runs {_unclaimed(others, namespace)}"
        if any(seat.standing in _MEASURING and seat.plan is None for seat in self.seats):
            return f"device {self.key} measures tasks alone, and is open when that is done"
        return self.unknown or self.unproven

    def runs_unclaimed(self, but: PodKey | None = None) -> set[PodKey]:
        """Pods that may hold something of it without a claim, but for one."""
        here = (pod for pod, place in self.unclaimed.items() if place in {None, self.key})
        return {pod for pod in here if pod != but}

    @property
    def only_measures(self) -> bool:
        """Whether nothing holds anything of it: it is empty, or has only what is measured here."""
        planless = all(seat.measured and seat.plan is None for seat in self.seats)
        return self.usable and not self.orphans and not self.runs_unclaimed() and planless

    @property
    def holds(self) -> bool:
        """Whether a running pod holds something of it."""
        return any(seat.held is not None for seat in self.seats)

    @property
    def measures_now(self) -> bool:
        """Whether a program runs on it to be measured."""
        return any(seat.standing is Standing.PROFILING for seat in self.seats)

    def capacity(self, rules: KindRules, taken_by_others: Mapping[str, int]) -> DeviceCapacity:
        """The capacity that its seats may share: `taken_by_others` bytes of each tier less."""
        if self.device is None or self.node is None:
            raise LookupError(f"device {self.key} is gone: nothing can be planned on it")
        status = self.node.status
        tiers = tuple(
            tier.model_copy(
                update={
                    "used_bytes": min(tier.capacity_bytes, taken_by_others.get(tier.name.value, 0))
                }
            )
            for tier in status.tiers
        )
        node = self.node.model_copy(update={"status": status.model_copy(update={"tiers": tiers})})
        device = self.device.model_copy(update={"used_bytes": 0})
        return capacity_of(
            *(node, device, rules.margins),
            dispatch_s=rules.dispatch_s,
            gate_s=rules.gate_s,
            supports=supports_of(device),
        )

    def refuse(self, demand: TaskDemand, refusal: Refusal) -> None:
        """Note that a demand has no room here until something changes."""
        self._refused[id(demand.layout)] = demand, refusal

    def refusal_of(self, demand: TaskDemand) -> Refusal | None:
        """The refusal of one like it, in its own name; None if none was refused."""
        # Demands that are alike but for their names, and only they, have one layout (demands.py).
        known = self._refused.get(id(demand.layout))
        if known is None:
            return None
        before, refusal = known
        return refusal.told(before.domain, before.name, demand.name)

    def forget_refusals(self) -> None:
        """Something changed: what was refused may have room."""
        self._refused.clear()

    def forget_quotas_of(self, namespace: str) -> None:
        """A device gave back what counts against quotas that refused tasks of a namespace here."""
        self._refused = {
            key: (demand, refusal)
            for key, (demand, refusal) in self._refused.items()
            if demand.domain != namespace or refusal.reason is not Reason.QUOTA_EXCEEDED
        }

    @property
    def planned(self) -> list[tuple[TaskDemand, TaskPlan]]:
        """Demand and plan of the seats that have one, in the order of admission."""
        return [(s.demand, s.plan) for s in self.seats if s.demand and s.plan]

    def tier_bytes(self) -> dict[str, int]:
        """Bytes that its seats keep in each tier, those included that are not proven yet."""
        taken = Counter(tier_bytes(self.planned))
        for seat in self.seats:
            if seat.held is not None and seat.plan is None and seat.standing != Standing.LOST:
                for run in seat.held.homes:
                    taken[run.tier] += run.extents * seat.held.extent_bytes
        return dict(taken)

    def usage(self, capacity: DeviceCapacity) -> dict[str, Usage]:
        """The use of it by each namespace."""
        return usage_of(self.planned, capacity)


def _named(
    things: AbstractSet[ClaimKey] | AbstractSet[PodKey],
    namespace: str,
    one: str,
    many: str,
    fix: str,
) -> str:
    """Things that hold a place, by name those that whoever reads it may do something about."""
    own = sorted(thing.name for thing in things if thing.namespace == namespace)
    count = len(things) - len(own)
    told = [f"{many} ({', '.join(own)}); {fix}"] if own else []
    if count:
        others = f"1 {one}" if count == 1 else f"{count} {many}"
        told.append(f"{others}, of another namespace")
    return ", and ".join(told)


def _orphaned(claims: AbstractSet[ClaimKey], namespace: str) -> str:
    words = "claim without a MemTask", "claims without a MemTask"
    return _named(claims, namespace, *words, "delete their pods")


def _unclaimed(pods: AbstractSet[PodKey], namespace: str) -> str:
    words = "pod whose claim is lost", "pods whose claims are lost"
    return _named(pods, namespace, *words, "delete them")


def differs(before: MemNode, now: MemNode) -> bool:
    """Whether a node changed in what plans are made from: not in what is used, or when measured."""
    return _basis(before) != _basis(now)


def _basis(node: MemNode) -> object:
    status = node.status
    return (
        status.health == Health.FAILED,
        [device.model_copy(update={"used_bytes": 0}) for device in status.devices],
        [(t.name, t.capacity_bytes, t.health == Health.FAILED) for t in status.tiers],
        [(k.name, k.device, k.bandwidth, k.overhead_s, k.devices) for k in status.links],
    )
