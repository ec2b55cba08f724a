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
from collections.abc import Awaitable, Iterable

from tierline_agent.arenas import Arena
from tierline_agent.devices.base import Words
from tierline_agent.errors import ConnectionViolation, NotAdmitted, QuotaExceeded
from tierline_agent.extents import Pooled
from tierline_agent.placement import (
    check_layers,
    check_pinned,
    check_span_fits,
    extents_for,
    place,
)
from tierline_agent.protocol import (
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
from tierline_agent.sessions.client import Client

_MAX_ARENA_EXTENTS = (MAX_PAYLOAD - 16) // 4  # the placement must fit one RESERVED message
_MAX_PROFILED_LAYERS = 1 << 16
_FILLED_AT_ONCE = 8


class Loading:
    """The arenas of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- RESERVE

    def reserve(self, sequence: int, message: Reserve) -> None:
        """Grant an arena the places that the plan has for it."""
        client = self._client
        if message.arena in client.arenas:
            raise ConnectionViolation(
                f"arena {message.arena} is reserved already", out_of_order=True
            )
        try:
            arena = self._make_arena(message)
        except Exception as failure:  # every failure becomes an answer
            client.refuse(sequence, failure)
            return
        client.arenas[arena.index] = arena
        reserved = Reserved(
            arena=arena.index,
            resident_count=len(arena.residents),
            ring_slots=len(arena.ring),
            placement=arena.placement,
        )
        client.reply(sequence, reserved)
        for kind, pooled in (
            (DescriptorKind.RESIDENT, arena.residents),
            (DescriptorKind.RING, arena.ring),
        ):
            descriptors = [client.unit.device.export_extent(one.extent) for one in pooled]
            client.send_descriptors(sequence, arena.index, kind, descriptors)
        client.send_descriptors(
            sequence, arena.index, DescriptorKind.CONTROL, [arena.words.export()]
        )

    def _make_arena(self, message: Reserve) -> Arena:
        client, node = self._client, self._client.node
        plan = client.task.plan
        extent_bytes = client.unit.device.extent_bytes
        if message.arena >= node.config.limits.arenas:
            raise QuotaExceeded(f"a client may have {node.config.limits.arenas} arenas")
        if message.pinned_bytes > message.weight_bytes:
            raise ConnectionViolation("more bytes are pinned than there are")
        count = extents_for(message.weight_bytes, extent_bytes)
        first = self._first_extent(message.arena)
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
        client.own_arenas()
        node.watch_importer(client.process)
        residents, ring, words = self._take(len(resident), slots)
        return Arena(
            index=message.arena,
            weight_bytes=message.weight_bytes,
            pinned_bytes=message.pinned_bytes,
            extent_bytes=extent_bytes,
            placement=place(count, resident, slots),
            residents=residents,
            ring=ring,
            words=words,
            stored=[None] * count,
            first=first,
        )

    def _take(self, residents: int, slots: int) -> tuple[list[Pooled], list[Pooled], Words]:
        client = self._client
        words = client.unit.device.create_words()
        taken: list[Pooled] = []
        try:
            taken = client.unit.pool.take_resident(client.domain, residents, client.process)
            ring = client.unit.pool.ring(client.domain, slots, client.process) if slots else []
        except BaseException:
            words.close()
            client.unit.pool.unmapped(taken, client.process)
            client.unit.pool.give_up(taken)
            raise
        return taken, ring, words

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
        """Hand out the bytes of a sealed extent beside the ring."""
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
            arena.close(client.unit.pool, node.storage, unmapped_by=client.process)
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


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of `work`, also if some fail, then raise the first failure."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
