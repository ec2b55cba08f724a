"""An arena as the agent sees it: where its extents lie and where their copies are.

Built while a client loads (RESERVE, STORE, SEAL) or offered back by one after a restart (ATTACH).
It owns its resident extents, its control page and its references in the stores, and gives them up
in `close`. Ring slots belong to the domain's ring and are only referred to.

Invariant: a sealed arena has a stored copy of every extent and right bytes in every resident one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import blake3

from tierline_agent.devices.base import Words
from tierline_agent.memory.extents import ExtentPool, Pooled
from tierline_agent.policy.layout import residents_of, streamed_of
from tierline_agent.processes.identity import Process
from tierline_agent.storage.node_tiers import Storage, Stored
from tierline_agent.tiers.sources import Source

_RELEASED_AT_ONCE = 512


@dataclass
class Arena:
    """One arena of one client."""

    index: int
    weight_bytes: int
    pinned_bytes: int
    extent_bytes: int
    placement: tuple[int, ...]
    residents: list[Pooled]
    ring: list[Pooled]
    words: Words
    stored: list[Stored | None]
    sealed: bool = False
    first: int | None = None
    """The plan's number of its first extent; None: offered back without the arenas before it."""
    operations: int = 0
    """Requests at work on it; it is not freed before they are done."""
    _resident_extents: tuple[int, ...] = field(init=False)
    _streamed_extents: tuple[int, ...] = field(init=False)
    _sources: list[Source] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._resident_extents = residents_of(self.placement)
        self._streamed_extents = streamed_of(self.placement)

    @property
    def extent_count(self) -> int:
        """Extents of the arena."""
        return len(self.placement)

    @property
    def missing(self) -> int | None:
        """The first extent that was not stored yet."""
        return next((number for number, held in enumerate(self.stored) if held is None), None)

    def length_of(self, extent: int) -> int:
        """Bytes in use of an extent: only the last may be short."""
        return min(self.extent_bytes, self.weight_bytes - extent * self.extent_bytes)

    def store(self, extent: int, copy: Stored) -> Stored | None:
        """Put a copy in the place of the one that is returned."""
        before, self.stored[extent] = self.stored[extent], copy
        self._sources = None
        return before

    def resident_copies(self) -> list[tuple[Pooled, Stored]]:
        """Each resident extent with the copy that belongs into it."""
        copies = [self.stored[extent] for extent in self._resident_extents]
        return [
            (pooled, copy)
            for pooled, copy in zip(self.residents, copies, strict=True)
            if copy is not None
        ]

    def sources(self, storage: Storage, unit: str, domain: str, task: str) -> list[Source]:
        """Where the streamed extents of a sealed arena come from, in order."""
        if self._sources is None:
            self._sources = self._find_sources(storage, unit, domain, task)
        return self._sources

    def _find_sources(self, storage: Storage, unit: str, domain: str, task: str) -> list[Source]:
        found = []
        for extent in self._streamed_extents:
            copy = self.stored[extent]
            if copy is not None:
                name = f"extent {extent} of arena {self.index} of {task} from {copy.tier.name}"
                found.append(storage.source(unit, domain, copy, name))
        return found

    def digest(self) -> bytes:
        """BLAKE3 over the digests of the extents: what the arena holds."""
        digests = (copy.digest for copy in self.stored if copy is not None)
        return blake3.blake3(b"".join(digests)).digest()

    def bytes_per_tier(self) -> dict[str, int]:
        """How many bytes of the arena lie in each tier."""
        sums: dict[str, int] = {}
        for copy in self.stored:
            if copy is not None:
                sums[copy.tier.name] = sums.get(copy.tier.name, 0) + copy.length
        return sums

    async def close(self, pool: ExtentPool, storage: Storage, unmapped_by: Process | None) -> None:
        """Give everything back, once, whatever fails; references in parts, a turn each.

        `unmapped_by` is a process that has said it unmapped the arena.
        """
        residents, self.residents = self.residents, []
        stored, self.stored = self.stored, []
        async with AsyncExitStack() as giving_up:
            giving_up.callback(self.words.close)
            for first in range(0, len(stored), _RELEASED_AT_ONCE):
                giving_up.push_async_callback(asyncio.sleep, 0)
                part = stored[first : first + _RELEASED_AT_ONCE]
                giving_up.callback(release_all, storage, part)
            giving_up.callback(pool.give_up, residents)
            if unmapped_by is not None:
                giving_up.callback(pool.unmapped, residents, unmapped_by)


def release_all(storage: Storage, stored: Sequence[Stored | None]) -> None:
    """Give back the references that are held."""
    with ExitStack() as releasing:
        for copy in stored:
            if copy is not None:
                releasing.callback(storage.release, copy)
