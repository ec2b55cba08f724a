"""One MemTask as placement keeps it: its claims, its seats, and what it waits for."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from tierline_api.objects.conditions import ConditionStatus, ConditionType, Reason, find
from tierline_api.objects.memnode import Device
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_operator.placement.books.seats import (
    Claim,
    ClaimKey,
    DeviceKey,
    Seat,
    TaskKey,
)
from tierline_operator.placement.books.verdict import Refusal
from tierline_operator.placement.needs.demands import Demands
from tierline_operator.placement.needs.fitting import UNKNOWN, Needs
from tierline_operator.placement.needs.pods import needs_of
from tierline_operator.placement.needs.remeasuring import Longer
from tierline_operator.placement.needs.remeasuring import restored as learned

NOWHERE: Final[frozenset[DeviceKey]] = frozenset()


@dataclass
class Entry:
    """A task with everything that is known of it."""

    key: TaskKey
    task: MemTask
    granted: MemTaskSpec | None = None
    """The spec by which its seats are planned; None while it has none."""
    granted_generation: int | None = None
    claims: dict[ClaimKey, Claim] = field(default_factory=dict)
    seats: list[Seat] = field(default_factory=list)
    demands: Demands = field(default_factory=Demands)
    changed_demands: Demands = field(default_factory=Demands)
    change_refused: Refusal | None = None
    refusal: Refusal | None = None
    """Where it came nearest to a place."""
    untested: AbstractSet[DeviceKey] = NOWHERE
    """Devices that may have room for its missing seats. Many tasks share one set of all devices."""
    over_quota: bool = False
    """Whether a quota refused it somewhere: what any device gives back of that is room for it."""
    sharing: bool = True
    """Whether it may fit with the plans that are there: not looked at since something changed."""
    longer: dict[str, Longer] = field(default_factory=dict)
    """By node, what its jobs compute there at worst since they over-ran."""
    needs: Needs = UNKNOWN
    """The needs of its template on a node, for the places that are kept free."""
    asked: AbstractSet[tuple[Needs, tuple[str, ...]]] = frozenset()
    """The needs of the pods that wait: devices refused those, and no others."""
    idle: bool = False
    """Places are kept free no longer, because no pod came for them."""
    orphaned: bool = False
    """Its MemTask is gone: it is what the claims of its pods say (orphans.py)."""
    hint: DeviceKey | None = None
    """Where a place was kept for it before the operator's restart."""

    @property
    def spec(self) -> MemTaskSpec:
        """The spec by which it is planned."""
        return self.granted or self.task.spec

    def runs_on(self, device: Device | None) -> bool:
        """Whether a device is of the kind and model that the task wants, and does what it asks."""
        spec = self.task.spec
        if device is None or not spec.device.matches(device.kind, device.product):
            return False
        return device.training or spec.training is None

    @property
    def leaving(self) -> bool:
        """Whether the task is being deleted."""
        return self.task.metadata.deletion_timestamp is not None

    @property
    def profile_name(self) -> str:
        """The profile that it names, or the one with its own name."""
        return self.task.spec.profile or self.key.name

    @property
    def wanted(self) -> int:
        """Seats that it should have: one a live claim, and places kept free up to its replicas."""
        if self.leaving:
            return sum(1 for claim in self.claims.values() if claim.place)
        live = sum(1 for claim in self.claims.values() if claim.place or not claim.leaving)
        return max(live, 0 if self.idle else self.task.spec.replicas)

    @property
    def missing(self) -> int:
        """Seats that it has no place for."""
        return max(0, self.wanted - len(self.seats))

    @property
    def turn(self) -> tuple[float, TaskKey]:
        """Its turn among the waiting tasks: the older first."""
        created = self.task.metadata.creation_timestamp
        return (created.timestamp() if created else 0.0, self.key)

    @property
    def unheard(self) -> bool:
        """Whether nothing is known yet of where it could go."""
        return self.sharing and not self.seats and self.refusal is None

    def refused_by(self, device: DeviceKey) -> None:
        """It has no room there."""
        if not isinstance(self.untested, set):
            self.untested = set(self.untested)
        self.untested.discard(device)

    def unseated(self) -> list[Claim]:
        """Claims that wait for a seat, the oldest first."""
        seated = {seat.claim for seat in self.seats}
        waiting = [c for c in self.claims.values() if c.place is None and not c.leaving]
        return sorted(
            (claim for claim in waiting if claim.key not in seated),
            key=lambda claim: (claim.created, claim.key),
        )

    def asks_otherwise(self) -> bool:
        """Note what its waiting pods ask of a node; returns whether nodes may answer otherwise.

        That is where some ask what none did, or where those have gone for which no node was fit.
        """
        asked = {(claim.needs, claim.barred) for claim in self.unseated()}
        unfit = self.refusal is not None and self.refusal.reason is Reason.NOT_SCHEDULABLE
        new, self.asked = not asked <= self.asked or (unfit and asked != self.asked), asked
        return new

    def seat_for(self, claim: ClaimKey) -> Seat | None:
        """The seat of a claim."""
        return next((seat for seat in self.seats if seat.claim == claim), None)


def needs_of_template(task: MemTask) -> Needs:
    """The needs of the pods of a task's template on a node; UNKNOWN without a template."""
    template = task.spec.template
    return UNKNOWN if template is None else needs_of(template.to_api().get("spec"))


def restored(task: MemTask) -> Entry:
    """The entry of a task that is seen for the first time, as its status tells."""
    key, status = TaskKey(task.domain, task.name), task.status
    entry = Entry(key, task, needs=needs_of_template(task))
    if status is None:
        return entry
    entry.longer = learned(status.remeasured)
    admitted = find(status.conditions, ConditionType.ADMITTED)
    entry.idle = admitted is not None and admitted.reason == Reason.NO_PODS
    if admitted and admitted.status == ConditionStatus.TRUE and status.node and status.device:
        entry.hint = DeviceKey(status.node, status.device)
    if status.granted is not None:
        granted = task.spec.model_copy(
            update={
                "realtime": status.granted.realtime,
                "memory": status.granted.memory,
                "swap": status.granted.swap,
            }
        )
        entry.granted = task.spec if granted == task.spec else granted
        entry.granted_generation = status.granted.generation
    return entry
