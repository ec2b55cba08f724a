"""The pool of a device's extents: who uses which, and when one may be used again.

States of an extent:

    free      nobody uses it and nobody but the agent has it mapped; it belongs to the trust domain
              whose bytes it may still hold
    resident  holds one extent of one sealed (or loading) arena
    ring      a slot of a domain's ring
    workspace behind the workspaces of a domain's tasks, which have it in turns
    draining  given up by its user, but a process that imported it neither said that it unmapped
              it nor died

Importers are processes, as the watch of `identity` names them. The pool does no watching: it is
told. The fast-memory limit counts every extent that exists, whatever its state, because memory is
free only when the last importer is gone.

Invariant: an extent never serves another trust domain than the one it was created for. What is
taken from one domain for another is destroyed and created anew, and only when free. What a client
offered after a restart and nothing proves to be an earlier agent's (`Extent.offered`) serves the
domain that offered it, is shared only with clients that offer the same, and is destroyed as soon
as it is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tierline_agent.devices.base import Device, Extent, Identity
from tierline_agent.errors import DescriptorRefused, QuotaExceeded
from tierline_agent.identity import Process
from tierline_agent.policy import eviction


class State(Enum):
    """What an extent is used for."""

    FREE = "free"
    RESIDENT = "resident"
    RING = "ring"
    WORKSPACE = "workspace"
    DRAINING = "draining"


@dataclass(eq=False)
class Pooled:
    """An extent and what the pool knows of it."""

    key: int
    extent: Extent
    domain: str
    state: State
    importers: set[Process] = field(default_factory=set)
    since: int = 0


class ExtentPool:
    """All extents of one device. For the event loop's thread only."""

    def __init__(self, device: Device, on_change: Callable[[], None] | None = None) -> None:
        self._device = device
        self._on_change = on_change
        self._extents: dict[int, Pooled] = {}
        self._by_identity: dict[Identity, Pooled] = {}
        self._rings: dict[str, list[Pooled]] = {}
        self._workspaces: dict[str, list[Pooled]] = {}
        self._adoptable: dict[Identity, str] = {}
        self._lendable_bytes = self._apart_bytes = 0
        self._keys = 0
        self._moments = 0

    # -- limits and counts

    @property
    def limit(self) -> int:
        """Most extents that may exist beside what is kept free for workspaces."""
        lent = sum(map(len, self._workspaces.values())) * self._device.extent_bytes
        return self._at_most(self._apart_bytes + max(0, self._lendable_bytes - lent))

    def _at_most(self, reserved_bytes: int) -> int:
        return max(0, self._device.fast_bytes - reserved_bytes) // self._device.extent_bytes

    @property
    def bytes_held(self) -> int:
        """Bytes of all extents that exist."""
        return len(self._extents) * self._device.extent_bytes

    def reserve(self, lendable_bytes: int, apart_bytes: int = 0) -> None:
        """Keep so much of the fast memory free: for extents behind workspaces, and for good."""
        self._lendable_bytes, self._apart_bytes = lendable_bytes, apart_bytes

    def count_by_state(self) -> dict[State, int]:
        """Number of extents in each state."""
        counts = Counter(pooled.state for pooled in self._extents.values())
        return {state: counts[state] for state in State}

    def identities(self) -> dict[Identity, str]:
        """The identity and domain of every extent: what a restarted agent may adopt.

        Those that an earlier agent lent are among them until all its clients are back or dead.
        """
        own = {pooled.extent.identity: pooled.domain for pooled in self._extents.values()}
        return self._adoptable | own

    def maps_any(self, process: Process) -> bool:
        """Whether `process` may have any extent mapped."""
        return any(process in pooled.importers for pooled in self._extents.values())

    def ring_domains(self) -> list[str]:
        """The domains that have a ring."""
        return list(self._rings)

    # -- taking

    def take_resident(self, domain: str, count: int, importer: Process) -> list[Pooled]:
        """Find `count` extents for an arena of `importer`.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them.
        """
        taken = self._obtain(domain, count, State.RESIDENT)
        for pooled in taken:
            pooled.importers.add(importer)
        return taken

    def ring(self, domain: str, slots: int, importer: Process) -> list[Pooled]:
        """The first `slots` slots of the domain's ring, which grows if need be.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them.
        """
        return self._first(self._rings, domain, slots, State.RING, importer)

    def workspace(self, domain: str, count: int, importer: Process) -> list[Pooled]:
        """The first `count` extents behind the domain's workspaces, of which there may come more.

        They are what was reserved for workspaces, as far as that goes.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them.
        """
        return self._first(self._workspaces, domain, count, State.WORKSPACE, importer)

    def _first(
        self,
        shared: dict[str, list[Pooled]],
        domain: str,
        count: int,
        state: State,
        importer: Process,
    ) -> list[Pooled]:
        """The first `count` extents that a domain shares, of which there may come more."""
        extents = shared.setdefault(domain, [])
        if len(extents) < count:
            extents += self._obtain(domain, count - len(extents), state)
        for pooled in extents[:count]:
            pooled.importers.add(importer)
        return extents[:count]

    # -- giving back

    def give_up(self, extents: Iterable[Pooled]) -> None:
        """The arena that used these is gone; they are free once nobody has them mapped."""
        for pooled in extents:
            self._settle(pooled, unused=True)

    def unmapped(self, extents: Iterable[Pooled], importer: Process) -> None:
        """`importer` says that it has these mapped no more."""
        for pooled in extents:
            pooled.importers.discard(importer)
            self._settle(pooled)

    def died(self, importer: Process) -> None:
        """`importer` is dead: it has nothing mapped."""
        self.unmapped(list(self._extents.values()), importer)

    def shrink_ring(self, domain: str, slots: int) -> None:
        """No task of the domain needs more than `slots` slots any more."""
        self._shrink(self._rings, domain, slots)

    def shrink_workspace(self, domain: str, count: int) -> None:
        """No task of the domain has more than `count` extents of workspace any more."""
        self._shrink(self._workspaces, domain, count)

    # -- after a restart

    def expect(self, identities: Mapping[Identity, str]) -> None:
        """These were an earlier agent's: they may be adopted, each into its domain."""
        self._adoptable = dict(identities)

    def expect_no_more(self) -> None:
        """Nobody is left who could bring back what an earlier agent lent."""
        expected, self._adoptable = self._adoptable, {}
        self._changed(bool(expected))

    def adopt_resident(self, domain: str, descriptor: int, importer: Process) -> Pooled:
        """Take back a resident extent that a client offers.

        Raises:
            DescriptorRefused: it is not an extent of this domain, or is in use.
            QuotaExceeded: the fast memory holds no more.
        """
        pooled = self._adopt(domain, descriptor, self.limit)
        if pooled.state not in (State.FREE, State.DRAINING):
            raise DescriptorRefused("cannot take an extent back: it is in use by another arena")
        pooled.state = State.RESIDENT
        pooled.importers.add(importer)
        return pooled

    def adopt_ring(self, domain: str, slot: int, descriptor: int, importer: Process) -> Pooled:
        """Take back slot number `slot` of the domain's ring; slots come in order.

        Raises:
            DescriptorRefused: it is not an extent of this domain, or not this slot.
            QuotaExceeded: the fast memory holds no more.
        """
        return self._adopt_shared(State.RING, domain, slot, descriptor, importer)

    def adopt_workspace(
        self, domain: str, number: int, descriptor: int, importer: Process
    ) -> Pooled:
        """Take back extent `number` behind the domain's workspaces; they come in order.

        Raises:
            DescriptorRefused: it is not an extent of this domain, or not this one.
            QuotaExceeded: the fast memory holds no more.
        """
        return self._adopt_shared(State.WORKSPACE, domain, number, descriptor, importer)

    def close(self) -> None:
        """Let go of all extents; clients keep what they have mapped."""
        for pooled in self._extents.values():
            self._device.destroy_extent(pooled.extent)
        self._extents.clear()
        self._by_identity.clear()
        self._rings.clear()
        self._workspaces.clear()

    # -- inside

    def _obtain(self, domain: str, count: int, state: State) -> list[Pooled]:
        idle = [
            eviction.Idle(pooled.key, pooled.domain, pooled.since)
            for pooled in self._extents.values()
            if pooled.state is State.FREE
        ]
        limit = self._at_most(self._apart_bytes) if state is State.WORKSPACE else self.limit
        choice = eviction.choose(idle, domain, count, limit - len(self._extents))
        if choice.short:
            draining = self.count_by_state()[State.DRAINING]
            still = f"; {draining} are still mapped by processes that gave them up" * (draining > 0)
            raise QuotaExceeded(
                f"cannot reserve {count} extents: {choice.short} more than the fast memory of "
                f"{self._device.fast_bytes} bytes holds{still}"
            )
        for key in choice.destroy:
            self._destroy(self._extents[key])
        created: list[Pooled] = []
        try:
            for _ in range(choice.create):
                created.append(self._add(self._device.create_extent(), domain))  # noqa: PERF401 - those made so far must be known if one fails
        except OSError:
            for pooled in created:
                self._destroy(pooled)
            raise
        finally:
            self._changed(bool(choice.destroy or created))
        taken = [self._extents[key] for key in choice.reuse] + created
        for pooled in taken:
            pooled.state = state
        return taken

    def _shrink(self, shared: dict[str, list[Pooled]], domain: str, count: int) -> None:
        extents = shared.get(domain, [])
        surplus = extents[count:]
        del extents[count:]
        if not extents:
            shared.pop(domain, None)
        self.give_up(surplus)

    def _adopt_shared(
        self, state: State, domain: str, number: int, descriptor: int, importer: Process
    ) -> Pooled:
        ring = state is State.RING
        shared = (self._rings if ring else self._workspaces).setdefault(domain, [])
        limit = self.limit if ring else self._at_most(self._apart_bytes)
        pooled = self._adopt(domain, descriptor, limit)
        what = f"{'ring slot' if ring else 'workspace extent'} {number}"
        if number < len(shared):
            if shared[number] is not pooled:
                raise DescriptorRefused(f"cannot take {what} back: another one is in use")
        elif number > len(shared) or pooled.state not in (State.FREE, State.DRAINING):
            raise DescriptorRefused(f"cannot take {what} back: it is not the next one")
        else:
            pooled.state = state
            shared.append(pooled)
        pooled.importers.add(importer)
        return pooled

    def _adopt(self, domain: str, descriptor: int, limit: int) -> Pooled:
        extent = self._device.adopt_extent(descriptor)
        known = self._by_identity.get(extent.identity)
        if known is not None:
            owner: str | None = known.domain
        else:
            owner = domain if extent.offered else self._adoptable.get(extent.identity)
        full = known is None and len(self._extents) >= limit
        if known is None and owner == domain and not full:
            return self._add(extent, domain)
        if known is None or known.extent is not extent:
            self._device.destroy_extent(extent)  # this second mapping of it
        if owner != domain:
            raise DescriptorRefused("cannot take an extent back: the agent did not lend it")
        if known is None:
            raise QuotaExceeded("cannot take an extent back: the fast memory is full")
        return known

    def _add(self, extent: Extent, domain: str) -> Pooled:
        self._keys += 1
        pooled = Pooled(self._keys, extent, domain, State.FREE)
        self._extents[pooled.key] = pooled
        self._by_identity[extent.identity] = pooled
        self._adoptable.pop(extent.identity, None)  # also if the kernel uses a number again
        return pooled

    def _destroy(self, pooled: Pooled) -> None:
        del self._extents[pooled.key]
        del self._by_identity[pooled.extent.identity]
        self._device.destroy_extent(pooled.extent)

    def _settle(self, pooled: Pooled, *, unused: bool = False) -> None:
        if not unused and pooled.state is not State.DRAINING:
            return
        self._moments += 1
        pooled.since = self._moments
        pooled.state = State.DRAINING if pooled.importers else State.FREE
        if pooled.state is State.FREE and pooled.extent.offered:
            self._destroy(pooled)
            self._changed(True)

    def _changed(self, changed: bool) -> None:
        if changed and self._on_change is not None:
            self._on_change()
