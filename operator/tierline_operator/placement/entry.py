"""One MemTask as placement keeps it: its claims, its seats, and what it waits for."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from tierline_api.conditions import ConditionStatus, ConditionType, find
from tierline_api.memtask import MemTask, MemTaskSpec
from tierline_operator.placement.demands import Demands
from tierline_operator.placement.remeasuring import Longer
from tierline_operator.placement.remeasuring import restored as learned
from tierline_operator.placement.seats import Claim, ClaimKey, DeviceKey, Seat, TaskKey
from tierline_operator.placement.verdict import Refusal

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
    beside: bool = True
    """Whether it may fit beside the plans that are there: not looked at since something changed."""
    longer: dict[str, Longer] = field(default_factory=dict)
    """By node, what its jobs compute there at worst since they over-ran."""
    hint: DeviceKey | None = None
    """Where a place was kept for it before the operator's restart."""

    @property
    def spec(self) -> MemTaskSpec:
        """The spec by which it is planned."""
        return self.granted or self.task.spec

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
        return max(live, self.task.spec.replicas)

    @property
    def missing(self) -> int:
        """Seats that it has no place for."""
        return max(0, self.wanted - len(self.seats))

    @property
    def turn(self) -> tuple[float, TaskKey]:
        """Its turn among those who wait: the older first."""
        created = self.task.metadata.creation_timestamp
        return (created.timestamp() if created else 0.0, self.key)

    @property
    def unheard(self) -> bool:
        """Whether nothing is known yet of where it could go."""
        return self.beside and not self.seats and self.refusal is None

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

    def seat_for(self, claim: ClaimKey) -> Seat | None:
        """The seat of a claim."""
        return next((seat for seat in self.seats if seat.claim == claim), None)


def restored(task: MemTask) -> Entry:
    """The entry of a task that is seen for the first time, as its status tells."""
    key, status = TaskKey(task.domain, task.name), task.status
    entry = Entry(key, task)
    if status is None:
        return entry
    entry.longer = learned(status.remeasured)
    admitted = find(status.conditions, ConditionType.ADMITTED)
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
