"""The pool of a device's extents: what uses which, and when one may be used again.

States of an extent:

    free      nobody uses it and nobody but the agent has it mapped; it belongs to the trust domain
              whose bytes it may still hold
    resident  holds one extent of one sealed (or loading) arena
    ring      a slot of a domain's ring
    workspace backs the workspaces of a domain's tasks, which have it in turns; it stays that
              until no task needs it and no process has it mapped, for the next one that asks
    draining  given up by its user, but a process that imported it neither said that it unmapped
              it nor died

Importers are processes, as the watch of `identity` names them. The pool does no watching: it is
told. The fast-memory limit counts every extent that exists, whatever its state, because memory is
free only when the last importer is gone.

Invariant: an extent never serves another trust domain than the one it was created for. What is
taken from one domain for another is destroyed and created again, and only when free. What a client
offered after a restart and nothing proves to be an earlier agent's (`Extent.offered`) serves the
domain that offered it, is shared only with clients that offer the same, and is destroyed as soon as
it is free.

Invariant: resident extents are lent as memory that nobody but this agent can write. What an earlier
agent lent so this one cannot write either: it serves as what it is until it is free.

Invariant: a task never has more resident extents than its plan says, those included that its
processes left and may still have mapped: a task that leaves memory mapped goes without, and not the
others. A domain has no more extents of workspace than one of its tasks may ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tierline_agent.devices.base import Device, Extent, Identity
from tierline_agent.errors import DescriptorRefused, QuotaExceeded
from tierline_agent.memory.lent import Lent, Owner
from tierline_agent.policy import eviction
from tierline_agent.processes.identity import Process

_NOBODYS = "\0"
"""The domain of what cannot be lent again."""
_LATEST = 1 << 62


class State(Enum):
    """The use of an extent."""

    FREE = "free"
    RESIDENT = "resident"
    RING = "ring"
    WORKSPACE = "workspace"
    DRAINING = "draining"


def _owner(pooled: Pooled) -> Owner:
    if pooled.state is State.FREE:
        return Owner(pooled.domain, None)
    return Owner(pooled.domain, pooled.task)


def create_extents(device: Device, count: int) -> list[Extent]:
    """Make extents, all or none; in any thread. Raises OSError."""
    made: list[Extent] = []
    try:
        for _ in range(count):
            made.append(device.create_extent())  # noqa: PERF401 - those made must be known
    except BaseException:
        for extent in made:
            device.destroy_extent(extent)
        raise
    return made


@dataclass(frozen=True)
class Share:
    """How many resident extents a task may have, however they are held."""

    task: str
    domain: str
    most: int


@dataclass(eq=False)
class Pooled:
    """An extent and what the pool knows of it."""

    key: int
    extent: Extent
    domain: str
    state: State
    importers: set[Process] = field(default_factory=set)
    since: int = 0
    task: str = ""
    """The task in the plan of which a resident extent counts, until nobody has it mapped."""


class ExtentPool:
    """All extents of one device. For the event loop's thread only."""

    def __init__(self, device: Device, on_change: Callable[[], None] | None = None) -> None:
        self._device = device
        self._on_change = on_change
        self._changes = False
        self._extents: dict[int, Pooled] = {}
        self._by_state: dict[State, dict[int, Pooled]] = {state: {} for state in State}
        self._left: dict[tuple[str, str], dict[int, Pooled]] = {}
        """By task and domain: what processes gave up and may still have mapped."""
        self._residents: Counter[str] = Counter()
        """How many resident extents each task has."""
        self._by_identity: dict[Identity, Pooled] = {}
        self._rings: dict[str, list[Pooled]] = {}
        self._workspaces: dict[str, list[Pooled]] = {}
        self._needed: dict[str, int] = {}
        """How many of a domain's extents of workspace a task of it has."""
        self._lent = Lent()
        self._lendable_bytes = self._apart_bytes = 0
        self._keys = 0
        self._moments = 0

    # -- limits and counts

    @property
    def limit(self) -> int:
        """Most extents that may exist in addition to what is kept free for workspaces."""
        lent = sum(map(len, self._workspaces.values())) * self._device.extent_bytes
        return self._at_most(self._apart_bytes + max(0, self._lendable_bytes - lent))

    def _at_most(self, reserved_bytes: int) -> int:
        most = max(0, self._device.fast_bytes - reserved_bytes) // self._device.extent_bytes
        return max(0, most - self._lent.absent)

    @property
    def bytes_held(self) -> int:
        """Bytes of all extents that exist."""
        return (len(self._extents) + self._lent.absent) * self._device.extent_bytes

    def reserve(self, lendable_bytes: int, apart_bytes: int = 0) -> None:
        """Keep so much of the fast memory free: for extents that back workspaces, and for good."""
        self._lendable_bytes, self._apart_bytes = lendable_bytes, apart_bytes

    def count_by_state(self) -> dict[State, int]:
        """Number of extents in each state; what is absent drains."""
        counts = {state: len(extents) for state, extents in self._by_state.items()}
        counts[State.DRAINING] += self._lent.absent
        return counts

    def owners(self) -> dict[Identity, Owner]:
        """The identity and owner of every extent: what a restarted agent may adopt.

        Those that an earlier agent lent are among them until all its clients are back or dead.
        """
        own = {one.extent.identity: _owner(one) for one in self._extents.values()}
        return {**self._lent.owners, **own}

    def maps_any(self, process: Process) -> bool:
        """Whether `process` may have any extent mapped."""
        return any(process in pooled.importers for pooled in self._extents.values())

    def ring_domains(self) -> list[str]:
        """The domains that have a ring."""
        return list(self._rings)

    # -- taking

    def take_resident(self, share: Share, count: int, importer: Process) -> list[Pooled]:
        """Find `count` extents for an arena of `importer`; first what it left of the same task.

        Raises:
            QuotaExceeded: the fast memory holds no more, or others of the task left too many.
            OSError: the device could not make them.
        """
        own = [
            one
            for one in self._left_of(share).values()
            if one.importers == {importer} and one.extent.fits(sealed=True)
        ][:count]
        self._check_share(share, count - len(own))
        fresh = self._obtain(share.domain, count - len(own), State.RESIDENT, share.task)
        for pooled in fresh:
            pooled.importers.add(importer)
        for pooled in own:
            self._lend(pooled, share, importer)
        return [*own, *fresh]

    def _missing(self, domain: str, residents: int, slots: int) -> int:
        """How many extents would have to be made for so many resident ones, and that ring."""
        slots -= len(self._rings.get(domain, []))
        serves = Counter(
            (one.extent.fits(sealed=True), one.extent.fits(sealed=False))
            for one in self._free()
            if one.domain == domain
        )
        apart = max(0, residents - serves[True, False]) + max(0, slots - serves[False, True])
        return max(0, apart - serves[True, True])

    def make_room(self, domain: str, residents: int, slots: int, most: int) -> int:
        """How many of those that are missing may be made now, at most `most`; 0: there is no room.

        In a plan there may be thousands, and making one may wait for the device.
        """
        missing = self._missing(domain, residents, slots)
        idle = self._idle()
        wanted = missing + sum(one.domain == domain for one in idle)
        choice = eviction.choose(idle, domain, wanted, self.limit - len(self._extents))
        for key in choice.destroy[:most]:
            self._destroy(self._extents[key])
        self._changes |= bool(choice.destroy)
        return min(choice.create, most, max(0, self.limit - len(self._extents)))

    def add(self, domain: str, made: Iterable[Extent]) -> None:
        """Keep new extents, which are free; those for which there is no room any more are not."""
        for extent in made:
            if len(self._extents) < self.limit:
                self._add(extent, domain)
                self._changes = True
            else:
                self._device.destroy_extent(extent)

    def _left_of(self, share: Share) -> Mapping[int, Pooled]:
        return self._left.get((share.task, share.domain), {})

    def _check_share(self, share: Share, count: int) -> None:
        """Check that a task may have so many more. Raises QuotaExceeded."""
        left = self._left_of(share)
        absent = self._lent.absent_of(share.task)
        gone = len(left) + absent
        if gone and self._residents[share.task] + gone + count > share.most:
            pids = sorted({process.pid for one in left.values() for process in one.importers})
            whose = (
                f"gave them up; end process {pids[0]}"
                if pids
                else "have not come back since the agent started again; end them"
            )
            raise QuotaExceeded(
                f"cannot reserve {count} extents: the plan of {share.task} has {share.most} "
                f"resident ones, and {gone} are still mapped by processes that {whose}"
            )

    def _lend(self, pooled: Pooled, share: Share, importer: Process) -> None:
        self._move(pooled, State.RESIDENT, share.task)
        pooled.importers.add(importer)

    def ring(self, domain: str, slots: int, importer: Process) -> list[Pooled]:
        """The first `slots` slots of the domain's ring, which grows if need be.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them.
        """
        return self._first(self._rings, domain, slots, State.RING, importer)

    def workspace(self, domain: str, count: int, importer: Process) -> list[Pooled]:
        """The first `count` extents that back the domain's workspaces; more may come.

        They are what was reserved for workspaces, as far as that goes.

        Raises:
            QuotaExceeded: the fast memory holds no more.
            OSError: the device could not make them.
        """
        lent = self._first(self._workspaces, domain, count, State.WORKSPACE, importer)
        self._needed[domain] = max(count, self._needed.get(domain, 0))
        return lent

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
        for domain in list(self._workspaces):
            self._trim_workspace(domain)

    def shrink_ring(self, domain: str, slots: int) -> None:
        """No task of the domain needs more than `slots` slots any more."""
        ring = self._rings.get(domain, [])
        surplus = ring[slots:]
        del ring[slots:]
        if not ring:
            self._rings.pop(domain, None)
        self.give_up(surplus)

    def shrink_workspace(self, domain: str, count: int) -> None:
        """No task of the domain has more than `count` extents of workspace any more."""
        self._needed[domain] = count
        self._trim_workspace(domain)

    def _trim_workspace(self, domain: str) -> None:
        needed = self._needed.get(domain, 0)
        extents = self._workspaces.get(domain, [])
        while len(extents) > needed and not extents[-1].importers:
            self.give_up([extents.pop()])
        if not extents:
            self._workspaces.pop(domain, None)
        if not needed:
            self._needed.pop(domain, None)

    # -- after a restart

    def expect(self, owners: Mapping[Identity, Owner]) -> None:
        """These were an earlier agent's: they may be adopted, each into its domain."""
        self._lent.expect(owners)

    @property
    def expects(self) -> bool:
        """Whether any that an earlier agent lent may still be brought back."""
        return bool(self._lent)

    def away(self, tasks: Collection[str], domains: Collection[str]) -> None:
        """Nobody is waited for any more, and of these tasks clients live that are not back."""
        self._lent.away(tasks, domains)
        self._changed(True)

    def expect_no_more(self) -> None:
        """No client is left that could bring back what an earlier agent lent."""
        self._changed(self._lent.forget())

    def adopt_resident(self, share: Share, descriptor: int, importer: Process) -> Pooled:
        """Take back a resident extent that a client offers.

        Raises:
            DescriptorRefused: it is not an extent of this domain, or is in use.
            QuotaExceeded: the fast memory holds no more, or others of the task left too many.
        """
        pooled = self._adopt(share.domain, self._device.adopt_extent(descriptor), self.limit)
        if pooled.state not in (State.FREE, State.DRAINING):
            raise DescriptorRefused("cannot take an extent back: it is in use by another arena")
        try:
            self._check_share(share, pooled.state is State.FREE or pooled.task != share.task)
        except QuotaExceeded:
            if pooled.state is State.FREE:  # the agent's mapping; the client's stays its own
                self._destroy(pooled)
            raise
        self._lend(pooled, share, importer)
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
        """Take back extent `number` of those that back the domain's workspaces; they come in order.

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
        for extents in self._by_state.values():
            extents.clear()
        self._left.clear()
        self._residents.clear()
        self._by_identity.clear()
        self._rings.clear()
        self._workspaces.clear()
        self._needed.clear()

    # -- inside

    def _free(self) -> Iterable[Pooled]:
        return self._by_state[State.FREE].values()

    def _idle(self, *, sealed: bool | None = None) -> list[eviction.Idle]:
        """Free extents to be lent `sealed`, or not, or (None) any way; others are nobody's.

        Those that can be lent no other way count as idle for the shortest time: they go first.
        """

        def seen(pooled: Pooled) -> eviction.Idle:
            fits = pooled.extent.fits
            wanted, other = (True, False) if sealed is None else (sealed, not sealed)
            usable, otherwise = fits(sealed=wanted), fits(sealed=other)
            only = _LATEST if sealed is not None and usable and not otherwise else 0
            usable = usable or (sealed is None and otherwise)
            domain = pooled.domain if usable else _NOBODYS
            return eviction.Idle(pooled.key, domain, only + pooled.since)

        return [*map(seen, self._free())]

    def _move(self, pooled: Pooled, state: State, task: str) -> None:
        """Give an extent another state, and the task in the plan of which it counts."""
        self._forget_state(pooled)
        pooled.state, pooled.task = state, task
        self._by_state[state][pooled.key] = pooled
        if state is State.RESIDENT:
            self._residents[task] += 1
        elif state is State.DRAINING:
            self._left.setdefault((task, pooled.domain), {})[pooled.key] = pooled

    def _forget_state(self, pooled: Pooled) -> None:
        self._by_state[pooled.state].pop(pooled.key, None)
        if pooled.state is State.RESIDENT:
            self._residents[pooled.task] -= 1
            if not self._residents[pooled.task]:
                del self._residents[pooled.task]
        elif pooled.state is State.DRAINING:
            owner = (pooled.task, pooled.domain)
            self._left[owner].pop(pooled.key)
            if not self._left[owner]:
                del self._left[owner]

    def _obtain(self, domain: str, count: int, state: State, task: str = "") -> list[Pooled]:
        idle = self._idle(sealed=state is State.RESIDENT)
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
            self._changed(True)
            raise
        taken = [self._extents[key] for key in choice.reuse] + created
        for pooled in taken:
            self._move(pooled, state, task)
        self._changed(bool(choice.destroy or taken))  # also whose they are now
        return taken

    def _adopt_shared(
        self, state: State, domain: str, number: int, descriptor: int, importer: Process
    ) -> Pooled:
        ring = state is State.RING
        what = f"{'ring slot' if ring else 'workspace extent'} {number}"
        shared = (self._rings if ring else self._workspaces).setdefault(domain, [])
        limit = self.limit if ring else self._at_most(self._apart_bytes)
        offered = self._device.adopt_extent(descriptor)
        if not offered.writable:
            self._device.destroy_extent(offered)
            raise DescriptorRefused(f"cannot take {what} back: nobody can write to it")
        pooled = self._adopt(domain, offered, limit)
        if number < len(shared):
            if shared[number] is not pooled:
                raise DescriptorRefused(f"cannot take {what} back: another one is in use")
        elif number > len(shared) or pooled.state not in (State.FREE, State.DRAINING):
            raise DescriptorRefused(f"cannot take {what} back: it is not the next one")
        else:
            self._move(pooled, state, pooled.task)
            shared.append(pooled)
        pooled.importers.add(importer)
        if not ring:
            self._needed[domain] = max(number + 1, self._needed.get(domain, 0))
        return pooled

    def _adopt(self, domain: str, extent: Extent, limit: int) -> Pooled:
        known = self._by_identity.get(extent.identity)
        if known is not None:
            owner: str | None = known.domain
        else:
            lender = self._lent.owners.get(extent.identity)
            owner = domain if extent.offered else lender.domain if lender else None
        limit += self._lent.counts(extent.identity)  # it counts already
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
        self._extents[pooled.key] = self._by_state[State.FREE][pooled.key] = pooled
        self._by_identity[extent.identity] = pooled
        self._lent.take(extent.identity)  # also if the kernel uses a number again
        return pooled

    def _destroy(self, pooled: Pooled) -> None:
        del self._extents[pooled.key]
        self._forget_state(pooled)
        del self._by_identity[pooled.extent.identity]
        self._device.destroy_extent(pooled.extent)

    def _settle(self, pooled: Pooled, *, unused: bool = False) -> None:
        if not unused and pooled.state is not State.DRAINING:
            return
        self._moments += 1
        pooled.since = self._moments
        if pooled.importers:
            self._move(pooled, State.DRAINING, pooled.task)
            return
        self._move(pooled, State.FREE, "")
        if pooled.extent.offered:
            self._destroy(pooled)
            self._changed(True)

    def _changed(self, changed: bool) -> None:
        self._changes |= changed
        if self._changes and self._on_change is not None:
            self._changes = False
            self._on_change()
