"""Loading: RESERVE, STORE, SEAL, FREE, FETCH, PROFILE.

The plan decides which extents are resident and where the copies lie; a client can only fill what
it was granted. An arena has its numbers of the plan from RESERVE on until its extents are given up,
whatever becomes of those before it.

Invariant: an arena is sealed only with every extent stored, every layer's streamed extents fitting
the ring, and every resident extent read back, verified. No two arenas have a number of the plan in
common.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from tierline_agent.concurrency import gather_all
from tierline_agent.devices.base import Words
from tierline_agent.errors import ConnectionViolation, NotAdmitted, QuotaExceeded
from tierline_agent.memory.arenas import Arena
from tierline_agent.memory.extents import Pooled, create_extents
from tierline_agent.policy.layout import (
    check_layers,
    check_pinned,
    check_span_fits,
    extents_for,
    place,
)
from tierline_agent.sessions.client import Client
from tierline_agent.transport.protocol import (
    MAX_PAYLOAD,
    DescriptorKind,
    Fetch,
    Fetched,
    Free,
    Freed,
    Profile,
    Profiled,
    Reserve,
    Reserved,
    Seal,
    Sealed,
    Store,
    Stored,
)

_log = logging.getLogger(__name__)
_MAX_ARENA_EXTENTS = (MAX_PAYLOAD - 16) // 4  # the placement must fit one RESERVED message
_MAX_PROFILED_LAYERS = 1 << 16
_FILLED_AT_ONCE = 8
_LENT_AT_ONCE = 64
_TAKEN_AT_ONCE = 512


@dataclass(frozen=True)
class _Places:
    """What a plan has for an arena: its extents from `first` on, which of them are resident."""

    first: int
    count: int
    resident: set[int]
    slots: int


class Loading:
    """The arenas of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- RESERVE

    def reserve(self, sequence: int, message: Reserve) -> None:
        """Grant an arena the places that the plan has for it.

        Not until all clients from before a restart are back: they offer their domain's ring. Nor
        until those of the task that have left gave up what they had: what they leave mapped counts.
        What is made and lent for a large plan takes more than one turn of the event loop, and on
        some devices each call waits for the jobs there.
        """
        client, plan = self._client, self._client.task.plan
        self._check_new(message)
        large = len(plan.resident_extents) + plan.ring_extents > _LENT_AT_ONCE
        aside = large or not client.unit.device.makes_at_once or client.unit.reserving.locked()
        if client.awaits_others or client.those_before() or aside:
            client.spawn(sequence, self._reserve_in_turns(sequence, message))
            return
        try:
            arena = self._make_arena(message)
        except Exception as failure:  # every failure becomes an answer
            self._refuse(sequence, failure)
            return
        self._lend(sequence, arena, [*self._exports(arena)])

    def _check_new(self, message: Reserve) -> None:
        if message.arena in self._client.arenas:
            raise ConnectionViolation(
                f"arena {message.arena} is reserved already", out_of_order=True
            )

    async def _reserve_in_turns(self, sequence: int, message: Reserve) -> None:
        client, device = self._client, self._client.unit.device
        await client.others_are_back()
        while before := client.those_before():
            await asyncio.wait(before)
        self._check_new(message)
        async with client.unit.reserving:  # what is made for one is not taken by another
            try:
                await self._make_extents(self._places(message))
                words = await asyncio.to_thread(device.create_words)
                arena = await self._make_arena_in_turns(message, words)
            except Exception as failure:  # every failure becomes an answer
                self._refuse(sequence, failure)
                return
        arena.operations += 1  # it is not freed before it is lent
        descriptors: list[int] = []
        try:
            for descriptor in self._exports(arena):
                descriptors.append(descriptor)
                if not len(descriptors) % _LENT_AT_ONCE:
                    await asyncio.sleep(0)
        except BaseException:
            client.close_elsewhere(descriptors)
            raise
        finally:
            arena.operations -= 1
        self._lend(sequence, arena, descriptors)

    def _refuse(self, sequence: int, failure: Exception) -> None:
        """Answer; without room, whoever looks at the task should know why it does not run."""
        client = self._client
        if isinstance(failure, QuotaExceeded):
            _log.warning("refusing memory to %s: %s", client, failure)
            client.task.note_once("refused", f"{client}: {failure}")
        client.refuse(sequence, failure)

    async def _make_extents(self, places: _Places) -> None:
        """Have the extents made that a plan needs and that are not there, away from the loop."""
        client, pool = self._client, self._client.unit.pool
        wanted = client.domain, len(places.resident), places.slots
        while count := pool.make_room(*wanted, _LENT_AT_ONCE):
            made = await asyncio.to_thread(create_extents, client.unit.device, count)
            pool.add(client.domain, made)

    def _exports(self, arena: Arena) -> Iterator[int]:
        """A descriptor of each extent of an arena, and of its words, in the order of `_lend`."""
        device = self._client.unit.device
        for pooled in arena.residents:
            yield device.export_extent(pooled.extent, sealed=True)
        for pooled in arena.ring:
            yield device.export_extent(pooled.extent, sealed=False)
        yield arena.words.export()

    def _lend(self, sequence: int, arena: Arena, descriptors: list[int]) -> None:
        client, residents, slots = self._client, len(arena.residents), len(arena.ring)
        client.reply(
            sequence,
            Reserved(
                arena=arena.index,
                resident_count=residents,
                ring_slots=slots,
                placement=arena.placement,
            ),
        )
        for kind, part in (
            (DescriptorKind.RESIDENT, descriptors[:residents]),
            (DescriptorKind.RING, descriptors[residents:-1]),
            (DescriptorKind.CONTROL, descriptors[-1:]),
        ):
            client.send_descriptors(sequence, arena.index, kind, part)

    def _places(self, message: Reserve) -> _Places:
        """What the plan has for an arena. Raises what refuses it."""
        client, node = self._client, self._client.node
        plan = client.task.plan
        extent_bytes = client.unit.device.extent_bytes
        if message.arena >= node.config.limits.arenas:
            raise QuotaExceeded(f"a client may have {node.config.limits.arenas} arenas")
        if message.pinned_bytes > message.weight_bytes:
            raise ConnectionViolation("more bytes are pinned than there are")
        count = extents_for(message.weight_bytes, extent_bytes)
        first = self._first_extent(message.arena)
        if message.arena and first >= plan.extent_count:
            raise QuotaExceeded(
                f"the plan of {client.task.name} has no arena {message.arena}: no job of its "
                "profile called this model; profile it with more jobs"
            )
        if count > _MAX_ARENA_EXTENTS or first + count > plan.extent_count:
            raise QuotaExceeded(
                f"arena {message.arena} of {client.task.name} needs extents {first} to "
                f"{first + count - 1} and its plan has {plan.extent_count}; profile the task again"
            )
        self._check_free(message.arena, first, count)
        resident = {e - first for e in plan.resident_extents if first <= e < first + count}
        slots = min(plan.ring_extents, count - len(resident))
        check_pinned(message.pinned_bytes, extent_bytes, resident)
        check_span_fits(message.largest_span_extents, count, resident, slots)
        client.check_plan(count, len(resident))
        return _Places(first, count, resident, slots)

    def _make_arena(self, message: Reserve) -> Arena:
        """Take what the plan has for an arena."""
        places = self._claim(message)
        words = self._client.unit.device.create_words()
        try:
            return self._keep(message, places, self._take(len(places.resident)), words)
        except BaseException:
            words.close()
            raise

    async def _make_arena_in_turns(self, message: Reserve, words: Words) -> Arena:
        """The same, some extents a turn; `words` were made for it, and are its own then.

        What is taken counts from then on. If others leave too little of the rest, or the client
        has the arena by another way meanwhile, it is given up: its process has the first of it when
        it asks again, as it may have had it before, and mapped.
        """
        residents: list[Pooled] = []
        try:
            places = self._claim(message)
            while (missing := len(places.resident) - len(residents)) > 0:
                residents += self._take(min(missing, _TAKEN_AT_ONCE))
                await asyncio.sleep(0)
        except BaseException:
            self._client.unit.pool.give_up(residents)
            words.close()
            raise
        try:
            return self._keep(message, places, residents, words)
        except BaseException:
            words.close()
            raise

    def _claim(self, message: Reserve) -> _Places:
        """Check that the client may have an arena, and that others of its task do not."""
        client = self._client
        self._check_new(message)
        places = self._places(message)
        client.own_arenas()
        client.node.watch_importer(client.process)
        return places

    def _take(self, count: int) -> list[Pooled]:
        client = self._client
        return client.unit.pool.take_resident(client.share, count, client.process)

    def _keep(
        self, message: Reserve, places: _Places, residents: list[Pooled], words: Words
    ) -> Arena:
        """The arena of these, which is the client's, with what it shares of the ring."""
        client, pool, slots = self._client, self._client.unit.pool, places.slots
        try:
            self._check_new(message)
            ring = pool.ring(client.domain, slots, client.process) if slots else []
        except BaseException:
            pool.give_up(residents)
            raise
        arena = Arena(
            index=message.arena,
            weight_bytes=message.weight_bytes,
            pinned_bytes=message.pinned_bytes,
            extent_bytes=client.unit.device.extent_bytes,
            placement=place(places.count, places.resident, places.slots),
            residents=residents,
            ring=ring,
            words=words,
            stored=[None] * places.count,
            first=places.first,
        )
        client.arenas[arena.index] = arena
        return arena

    def _first_extent(self, index: int) -> int:
        """The plan's number of an arena's first extent: arenas are numbered one after another."""
        arenas = self._client.arenas
        missing = next((lower for lower in range(index) if lower not in arenas), None)
        if missing is not None:
            raise NotAdmitted(
                f"arena {index} cannot be placed before arena {missing}: the plan numbers extents "
                "over all arenas in order"
            )
        before = arenas[index - 1] if index else None
        if before is None or before.first is None:
            return sum(arenas[lower].extent_count for lower in range(index))
        return before.first + before.extent_count

    def _check_free(self, index: int, first: int, count: int) -> None:
        client = self._client
        for other in (*client.arenas.values(), *client.leaving):
            begin = other.first
            if begin is not None and begin < first + count and first < begin + other.extent_count:
                raise QuotaExceeded(
                    f"arena {index} of {client.task.name} needs extents {first} to "
                    f"{first + count - 1} of its plan, and arena {other.index} has some of them; "
                    "free that arena first, or profile the task again"
                )

    # -- STORE

    def store(self, sequence: int, message: Store) -> None:
        """Copy an extent from staging memory into its tier.

        Into a sealed arena between its jobs: the program has other weights from now on.
        """
        arena = self._client.arena(message.arena)
        if arena.sealed and self._client.job_arena is arena:
            raise ConnectionViolation(f"a job reads arena {message.arena}", out_of_order=True)
        if message.extent >= arena.extent_count:
            raise ConnectionViolation(f"arena {message.arena} has no extent {message.extent}")
        if message.length > arena.length_of(message.extent):
            raise ConnectionViolation(
                f"extent {message.extent} of arena {message.arena} does not hold "
                f"{message.length} bytes"
            )
        self._client.staged(message.staging_slot, message.length).release()
        self._client.spawn(sequence, self._store(sequence, message, arena), arena)

    async def _store(self, sequence: int, message: Store, arena: Arena) -> None:
        client, node = self._client, self._client.node
        assert arena.first is not None, "one that is not sealed was reserved here"  # noqa: S101 - an invariant
        await node.recovery.settled()
        if arena.sealed:
            await client.unit.executor.quiet(arena.words)
        stored = await node.storage.put(
            client.domain,
            client.task.plan.home_of_extent[arena.first + message.extent].value,
            lambda: client.staged(message.staging_slot, message.length),
        )
        before = arena.store(message.extent, stored)
        if before is not None:
            node.storage.release(before)
        if arena.sealed:
            for pooled, copy in arena.resident_copies():
                if copy is stored:
                    await node.storage.fill(client.unit.name, client.domain, copy, pooled.extent)
            client.write_down()
        client.reply(sequence, Stored(arena.index, message.extent, stored.digest))

    # -- SEAL

    def seal(self, sequence: int, message: Seal) -> None:
        """End the loading of an arena."""
        arena = self._client.arena(message.arena)
        if arena.sealed or arena.operations:
            raise ConnectionViolation(
                f"arena {message.arena} is {'sealed' if arena.sealed else 'still being stored'}",
                out_of_order=True,
            )
        if arena.missing is not None:
            raise ConnectionViolation(
                f"extent {arena.missing} of arena {message.arena} was not stored",
                out_of_order=True,
            )
        self._client.spawn(sequence, self._seal(sequence, message, arena), arena)

    async def _seal(self, sequence: int, message: Seal, arena: Arena) -> None:
        client, node = self._client, self._client.node
        check_layers(message.layers, arena.placement, len(arena.ring))
        copies = arena.resident_copies()
        for first in range(0, len(copies), _FILLED_AT_ONCE):
            await gather_all(
                node.storage.fill(client.unit.name, client.domain, stored, pooled.extent)
                for pooled, stored in copies[first : first + _FILLED_AT_ONCE]
            )
        arena.sealed = True
        client.write_down()
        client.reply(sequence, Sealed(arena.index, arena.digest()))

    # -- FETCH

    def fetch(self, sequence: int, message: Fetch) -> None:
        """Hand out the bytes of a sealed extent without the ring."""
        arena = self._client.sealed_arena(message.arena)
        if message.extent >= arena.extent_count:
            raise ConnectionViolation(f"arena {message.arena} has no extent {message.extent}")
        self._client.staged(message.staging_slot, 1).release()
        self._client.spawn(sequence, self._fetch(sequence, message, arena), arena)

    async def _fetch(self, sequence: int, message: Fetch, arena: Arena) -> None:
        client, node = self._client, self._client.node
        stored = arena.stored[message.extent]
        if stored is None:
            raise NotAdmitted(f"extent {message.extent} of arena {message.arena} was not stored")
        length = await node.storage.fetch(
            client.unit.name,
            client.domain,
            stored,
            client.deadline_ns,
            lambda: client.staged(message.staging_slot, stored.length),
        )
        client.reply(sequence, Fetched(arena.index, message.extent, length))

    # -- FREE, PROFILE

    def free(self, sequence: int, message: Free) -> None:
        """Take an arena back; the client has unmapped it."""
        client = self._client
        arena = client.arena(message.arena)
        if arena.operations or client.job_arena is arena:
            raise ConnectionViolation(f"arena {message.arena} is in use", out_of_order=True)
        del client.arenas[message.arena]
        client.leaving.append(arena)
        client.write_down()
        client.spawn(sequence, self._free(sequence, arena))

    async def _free(self, sequence: int, arena: Arena) -> None:
        client, node = self._client, self._client.node
        await client.unit.executor.quiet(arena.words)
        try:
            await arena.close(client.unit.pool, node.storage, unmapped_by=client.process)
        finally:
            client.leaving.remove(arena)
        if not client.arenas:
            client.unit.pool.unmapped(arena.ring, client.process)
            client.disown_arenas()
        client.reply(sequence, Freed(arena.index))

    def profile(self, sequence: int, message: Profile) -> None:
        """Keep which layers of an arena a client has measured."""
        client, first, count = self._client, message.first_layer, len(message.layers)
        if first + count > message.total_layers or message.total_layers > _MAX_PROFILED_LAYERS:
            raise ConnectionViolation(f"a profile has no layers up to {first + count}")
        client.arena(message.arena)
        before = client.task.profiled.get(message.arena, b"")
        known = bytearray(before[: message.total_layers].ljust(message.total_layers, b"\0"))
        known[first : first + count] = b"\1" * count
        client.task.profiled[message.arena] = bytes(known)
        client.reply(sequence, Profiled(known.count(1)))
