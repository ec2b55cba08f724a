"""The tasks that were admitted on this node, their plans, and whether they have been started.

The administrator registers a task with the plan that admission made. The agent proves nothing
again, but it refuses what cannot fit: on each device, Σ resident + Σ over domains of the largest
ring + the workspaces (`tierline_api.devices.fast_memory`) + Σ of what preempted jobs keep must fit
the fast memory, and all extents the tiers; and preemption where programs cannot yield.
Registrations survive a restart of the agent (and of the machine); a start of the releases survives
only as long as the clock it is told in.

Invariant: at any time all registered plans fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierline_agent.errors import ConfigError, NotAdmitted, QuotaExceeded
from tierline_agent.policy.excess import share_of
from tierline_agent.policy.releases import Releases
from tierline_agent.processes import state
from tierline_agent.registration import Registration, parse_registration
from tierline_agent.telemetry.accounting import TaskCounters
from tierline_api.devices.fast_memory import Contexts, Workspace, WorkspaceCharge, charge
from tierline_api.objects.plan import Plan

_KEPT_NOTICES = 16


@dataclass
class Task:
    """A registered task and what was seen of it."""

    registration: Registration
    device: str
    """Name of its device."""
    counters: TaskCounters = field(default_factory=TaskCounters)
    profiled: dict[int, bytes] = field(default_factory=dict)
    """By arena, a byte for each layer: 1 if a client has measured it."""
    notices: list[dict[str, Any]] = field(default_factory=list)
    reads_unseen: bool = False
    """Whether a process of it read weights where nobody could see it."""
    _revocations: set[str] = field(default_factory=set)
    """Why jobs of it were revoked."""
    releases: Releases = field(default_factory=Releases)
    """In which order its jobs are served."""
    gateless_ns: int = 0
    """How long its last job without gates had the device, if it is planned to yield."""
    arena_owner: object = None
    """The client that has the task's arenas: the plan holds for one process at a time."""
    arena_users: set[object] = field(default_factory=set)
    """The owner, and previous ones that have left and are not done with their arenas."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.registration.name

    @property
    def key(self) -> tuple[str, str]:
        """Its domain, and the name by which people know it; pods of one MemTask have the same."""
        return (self.registration.domain, self.registration.memtask or self.registration.name)

    @property
    def plan(self) -> Plan:
        """The plan that admission granted."""
        return self.registration.plan

    @property
    def charged(self) -> float:
        """The part of its device's time that admission charged it."""
        return min(1.0, self.plan.predicted_job_time_s * 1e9 / self.registration.period_ns)

    def add_notice(self, kind: str, size_bytes: int, text: str) -> None:
        """Keep what a client reported, the newest few, as it may be printed anywhere."""
        self.notices.append({"kind": kind, "bytes": size_bytes, "text": printable(text)})
        del self.notices[:-_KEPT_NOTICES]

    def is_new_revocation(self, why: str) -> bool:
        """Whether no job of it was revoked for this cause before: so many are told."""
        new = why not in self._revocations
        self._revocations.add(why)
        return new

    def note_once(self, kind: str, text: str) -> None:
        """Keep what the agent noticed, unless something of this kind is kept already."""
        if not any(notice["kind"] == kind for notice in self.notices):
            self.add_notice(kind, 0, text)


def printable(text: str) -> str:
    """A client's words: no lines of their own, no orders to a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass(frozen=True)
class Start:
    """When releases begin and end, CLOCK_MONOTONIC nanoseconds; 0 as end is for ever."""

    epoch_ns: int
    until_ns: int


@dataclass(frozen=True)
class DeviceCapacity:
    """The limits of the plans for one device."""

    fast_bytes: int
    extent_bytes: int
    other_names: tuple[str, ...] = ()
    """How else a registration may name it: number, uuid."""
    memory_bytes: int | None = None
    """All memory of the device, if processes take some of it by being there."""
    context_bytes: int = 0
    """Memory that each process takes so; the agent is one, and each task has one."""
    overlay: bool = True
    """Whether programs give the memory of their workspaces back between jobs."""

    def check_contexts(self, tasks: int) -> None:
        """Check that the contexts of so many tasks fit next to the fast memory.

        Raises:
            QuotaExceeded: they do not.
        """
        if self.memory_bytes is None:
            return
        contexts = Contexts(self.context_bytes, self.memory_bytes - self.fast_bytes)
        missing = contexts.missing_bytes(tasks) if self.context_bytes else 0
        if missing:
            raise QuotaExceeded(
                f"the contexts of {tasks} tasks and the agent take "
                f"{(tasks + 1) * self.context_bytes} bytes, fast memory takes {self.fast_bytes}, "
                f"and the device has {self.memory_bytes}; configure device.fast_bytes {missing} "
                "bytes smaller"
            )


@dataclass(frozen=True)
class Capacity:
    """The limits of all registered plans."""

    devices: Mapping[str, DeviceCapacity]
    tier_slots: Mapping[str, int]

    def device_of(self, registration: Registration) -> str:
        """The name of the device that a registration is for.

        Raises:
            ConfigError: it names none of them, or none where there are several.
        """
        wanted = registration.device
        for name, device in self.devices.items():
            if wanted in {name, *device.other_names} or (wanted is None and len(self.devices) == 1):
                return name
        which = "names no device" if wanted is None else f"names the device {wanted!r}"
        raise ConfigError(
            f"cannot register {registration.name!r}: it {which} and this node has "
            f"{', '.join(self.devices)}"
        )


class TaskRegistry:
    """The registered tasks. Every change is on disk before the call returns."""

    def __init__(self, path: Path, capacity: Capacity, limit: int) -> None:
        self._path = path
        self._capacity = capacity
        self._limit = limit
        self._tasks: dict[str, Task] = {}
        self.start: Start | None = None

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def load(self) -> list[str]:
        """Read the previous registrations; returns a sentence for each that no longer fits."""
        held, rows = _read(self._path)
        dropped = []
        for values in rows:
            try:
                registration = parse_registration(values)
                device = self._check(registration)
            except (ConfigError, QuotaExceeded) as error:
                dropped.append(str(error))
            else:
                self._tasks[registration.name] = Task(registration, device)
        start = held.get("start")
        if isinstance(start, dict) and held.get("boot") == state.boot_id():
            epoch_ns, until_ns = start.get("epoch_ns"), start.get("until_ns")
            if isinstance(epoch_ns, int) and isinstance(until_ns, int):
                self.start = Start(epoch_ns, until_ns)
        return dropped

    @staticmethod
    def homes_of_before(path: Path) -> Counter[str]:
        """Extents that the registrations in the file at `path` keep in each tier, fit or not."""
        registrations = []
        for values in _read(path)[1]:
            with suppress(ConfigError):
                registrations.append(parse_registration(values))
        return _homes(registrations)

    def get(self, name: str) -> Task:
        """The task of this name. Raises NotAdmitted."""
        task = self._tasks.get(name)
        if task is None:
            raise NotAdmitted(f"no task {name!r} is registered")
        return task

    def domain_of(self, name: str) -> str | None:
        """The trust domain of a task; None if it is not registered."""
        task = self._tasks.get(name)
        return None if task is None else task.registration.domain

    def register(self, registration: Registration) -> Task:
        """Add a task; the same registration again changes nothing.

        Raises:
            ConfigError: another registration has this name, or it names no device of this node.
            QuotaExceeded: it does not fit next to the others.
            OSError: it could not be written down.
        """
        known = self._tasks.get(registration.name)
        if known is not None:
            if known.registration == registration:
                return known
            raise ConfigError(
                f"cannot register {registration.name!r}: it is registered with another plan; "
                "remove it first"
            )
        device = self._check(registration)
        task = self._tasks[registration.name] = Task(registration, device)
        try:
            self._save()
        except OSError:
            del self._tasks[registration.name]
            raise
        return task

    def revise(self, registration: Registration) -> Task:
        """Give a registered task other terms.

        The memory of its plan changes only while no client has its arenas: what a client has mapped
        is what it was granted until it leaves.

        Raises:
            NotAdmitted: it is not registered.
            ConfigError: it names another device.
            QuotaExceeded: it does not fit next to the others; it stays as it was.
            OSError: it could not be written down.
        """
        task = self.get(registration.name)
        before = task.registration
        if task.arena_users and not registration.plan.holds_as(before.plan):
            registration = registration.model_copy(update={"plan": before.plan})
        if registration == before:
            return task
        if self._check(registration) != task.device:
            raise ConfigError(
                f"cannot move {task.name!r} from {task.device} to {registration.device}; "
                "remove it first"
            )
        task.registration = registration
        try:
            self._save()
        except OSError:
            task.registration = before
            raise
        return task

    def remove(self, name: str) -> Task:
        """Forget a task. Raises NotAdmitted, OSError."""
        task = self.get(name)
        del self._tasks[name]
        if not self._tasks:
            self.start = None
        self._save()
        return task

    def set_start(self, start: Start) -> None:
        """Note when releases begin, for tasks that get ready later as well. Raises OSError."""
        self.start = start
        self._save()

    def on_device(self, device: str) -> list[Task]:
        """The tasks of a device."""
        return [task for task in self._tasks.values() if task.device == device]

    def share_of(self, task: Task) -> float:
        """The part of its device's time that pays for what it costs others beyond its plan."""
        return share_of(task.charged, [one.charged for one in self.on_device(task.device)])

    def ring_slots(self, device: str, domain: str) -> int:
        """The largest ring of the domain's tasks on a device."""
        rings = (
            task.plan.ring_extents
            for task in self.on_device(device)
            if task.registration.domain == domain
        )
        return max(rings, default=0)

    def reserved_bytes(self, device: str) -> tuple[int, int]:
        """Fast memory that is not for weights: what may become workspaces in extents, and the rest.

        The rest is what workspaces take apart from extents, and what preempted jobs keep.
        """
        registrations = [task.registration for task in self.on_device(device)]
        capacity = self._capacity.devices[device]
        taken = _workspaces(registrations, capacity)
        parked = sum(map(_parked_bytes, registrations))
        if capacity.overlay:
            return taken.total_bytes, parked
        return taken.in_extents_bytes, taken.apart_bytes + parked

    def scheduling(self, device: str) -> str:
        """When a device's jobs give it away: NonPreemptive unless a plan says otherwise."""
        kinds = (task.registration.preemption for task in self.on_device(device))
        return next((kind.scheduling for kind in kinds if kind is not None), "NonPreemptive")

    def planned_bytes(self, device: str) -> int:
        """Fast memory of a device that the registered plans take together."""
        registrations = [task.registration for task in self.on_device(device)]
        return _fast_bytes(registrations, self._capacity.devices[device])

    def planned_homes(self) -> Counter[str]:
        """Extents that the registered plans keep in each tier."""
        return _homes(task.registration for task in self._tasks.values())

    def _check(self, registration: Registration) -> str:
        """The name of the device that a registration is for, if it fits next to the others."""
        name, plan = registration.name, registration.plan
        others = [task for task in self._tasks.values() if task.name != name]
        device = self._capacity.device_of(registration)
        capacity = self._capacity.devices[device]
        if len(others) >= self._limit:
            raise QuotaExceeded(f"cannot register {name!r}: {self._limit} tasks are registered")
        if plan.extent_bytes != capacity.extent_bytes:
            raise QuotaExceeded(
                f"cannot register {name!r}: its plan has extents of {plan.extent_bytes} bytes, "
                f"this device of {capacity.extent_bytes}; plan it again"
            )
        try:
            capacity.check_contexts(sum(task.device == device for task in others) + 1)
        except QuotaExceeded as error:
            raise QuotaExceeded(f"cannot register {name!r}: {error}") from error
        together = [*(task.registration for task in others if task.device == device), registration]
        _check_preemption(registration, together)
        needed = _fast_bytes(together, capacity)
        if needed > capacity.fast_bytes:
            kept = 0 if capacity.overlay else _workspaces(together, capacity).apart_bytes
            part = f" ({kept} of them for workspaces, which programs here keep)" if kept else ""
            raise QuotaExceeded(
                f"cannot register {name!r}: the plans need {needed} bytes of fast memory "
                f"together{part} and there are {capacity.fast_bytes}; "
                f"{needed - capacity.fast_bytes} bytes are missing"
            )
        together = [*(task.registration for task in others), registration]
        for tier, extents in _homes(together).items():
            slots = self._capacity.tier_slots.get(tier)
            if slots is None:
                raise QuotaExceeded(
                    f"cannot register {name!r}: its plan uses the {tier} tier, "
                    f"this node has {', '.join(self._capacity.tier_slots)}"
                )
            if extents > slots:
                raise QuotaExceeded(
                    f"cannot register {name!r}: the plans store {extents} extents in the {tier} "
                    f"tier and it holds {slots}"
                )
        return device

    def _save(self) -> None:
        value = {
            "boot": state.boot_id(),
            "tasks": [task.registration.as_json() for task in self._tasks.values()],
            "start": None
            if self.start is None
            else {"epoch_ns": self.start.epoch_ns, "until_ns": self.start.until_ns},
        }
        state.write_json(self._path, value)


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The content of the file at `path`, and its registrations, whatever it is. Raises OSError."""
    held = state.read_json(path)
    if not isinstance(held, dict):
        return {}, []
    rows = held.get("tasks")
    return held, rows if isinstance(rows, list) else []


def _fast_bytes(registrations: Sequence[Registration], capacity: DeviceCapacity) -> int:
    resident = parked = 0
    rings: dict[str, int] = {}
    for registration in registrations:
        plan = registration.plan
        resident += len(plan.resident_extents)
        parked += _parked_bytes(registration)
        ring = rings.get(registration.domain, 0)
        rings[registration.domain] = max(ring, plan.ring_extents)
    workspaces = _workspaces(registrations, capacity).total_bytes
    return (resident + sum(rings.values())) * capacity.extent_bytes + workspaces + parked


def _workspaces(registrations: Iterable[Registration], capacity: DeviceCapacity) -> WorkspaceCharge:
    # A task without weights to lay out has all it allocates in one workspace, which is swapped.
    rows = (
        Workspace(
            one.domain,
            one.plan.workspace_bytes,
            in_extents=one.plan.extent_count == 0 and not one.training,
            kept=one.training,
        )
        for one in registrations
    )
    return charge(rows, capacity.extent_bytes, overlay=capacity.overlay)


def _parked_bytes(registration: Registration) -> int:
    return registration.preemption.parked_bytes if registration.preemption is not None else 0


def _check_preemption(registration: Registration, together: Iterable[Registration]) -> None:
    """Check that the device's plans assume the same. Raises QuotaExceeded."""
    preemption = registration.preemption
    if preemption is None:
        return
    others = {one.preemption.scheduling for one in together if one.preemption is not None}
    if others - {preemption.scheduling}:
        raise QuotaExceeded(
            f"cannot register {registration.name!r}: its plan is for {preemption.scheduling}, the "
            f"others of this device for {' and '.join(others - {preemption.scheduling})}; plan "
            "them together"
        )


def _homes(registrations: Iterable[Registration]) -> Counter[str]:
    homes: Counter[str] = Counter()
    for registration in registrations:
        for home in registration.plan.homes:
            homes[home.tier.value] += home.extents
    return homes
