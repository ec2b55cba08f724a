"""The tiers of this node: each a store and the links to it.

A tier that is read by threads has one link for all devices, which take turns on it. From one that
is memory each GPU copies by itself, so it has a link of its own there.

It joins stores with links and with trust domains; which extent goes to which tier the plan says.
Clients share memory with the agent, so what comes from a client is copied before it is looked at,
and what goes to one is verified before it is handed over: a client that scribbles meanwhile spoils
its own copy and nothing else.

Invariant: a reference in a store is held for every digest in a `Stored` that was not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tierline_agent.config import TierSettings
from tierline_agent.devices.base import Device, Extent
from tierline_agent.errors import NotAdmitted
from tierline_agent.links.link import Link
from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT
from tierline_agent.tiers import (
    CorruptExtent,
    MappedMedium,
    Store,
    UnknownExtent,
    domain_key,
    open_medium,
)
from tierline_agent.tiers.memory import Warm, address_of, copy_out
from tierline_agent.tiers.sources import Lender, Source
from tierline_api.objects.memnode import READ_LINK, LinkName
from tierline_api.objects.plan import Tier as TierName

_NOTHING: Final[Mapping[MappedMedium, int]] = MappingProxyType({})
_WRITE_LINK = {
    TierName.DRAM: LinkName.D2H,
    TierName.PMEM: LinkName.PMEM_WRITE,
    TierName.NVME: LinkName.NVME_WRITE,
}


@dataclass(frozen=True)
class Tier:
    """A storage tier of the node, and the links by which it is read and written."""

    name: str
    store: Store
    reads: Mapping[str, Link]
    """By the name of the device that reads."""
    write: Link

    @property
    def links(self) -> list[Link]:
        """All links, each once: devices may share one."""
        return [*dict.fromkeys(self.reads.values()), self.write]

    def devices_on(self, link: Link) -> int:
        """How many devices take turns on a link when they read; 1 for the one that writes."""
        return max(1, sum(link is one for one in self.reads.values()))

    def put(self, key: bytes, content: memoryview) -> bytes:
        """Store content, for a worker of `write`, and return its digest. Raises as `Store.put`.

        Of a medium's own link the write is measured, and not the digest. The dram tier has none:
        what its link measures is devices that save memory, and this is a copy inside the host.
        """
        return self.store.put(key, content, self.write.measure if self.measured else None)

    @property
    def measured(self) -> bool:
        """Whether the link that writes is the medium's own."""
        return self.write.name != LinkName.D2H


@dataclass(frozen=True)
class Stored:
    """An extent's copy in a tier, with a reference held."""

    tier: Tier
    digest: bytes
    length: int


class Storage:
    """All tiers of the node."""

    def __init__(self, devices: Mapping[str, Device], extent_bytes: int) -> None:
        self.tiers: dict[str, Tier] = {}
        self._devices = devices
        self._warm = Warm(extent_bytes, IN_FLIGHT)
        self._keys: dict[str, bytes] = {}

    @classmethod
    def open(
        cls,
        settings: Iterable[TierSettings],
        devices: Mapping[str, Device],
        extent_bytes: int,
        queue_limit: int,
        mapped: Mapping[MappedMedium, int] = _NOTHING,
    ) -> Storage:
        """Open every tier of the configuration, for devices with extents of `extent_bytes`.

        What was mapped early (and where on it the content begins, bytes), and maybe attached to
        devices, is taken over where it is what a tier is made of, and else let go before anything
        is allocated.

        Raises:
            TierError: a medium cannot be used.
            OSError: a device cannot pin a medium that is memory.
        """
        storage = cls(devices, extent_bytes)
        early = _in_place(devices, mapped)
        try:
            for tier in settings:
                medium = early.pop(tier.name, None)
                opened = _open_tier(tier, devices, extent_bytes, queue_limit, medium)
                storage.tiers[tier.name] = opened
                if medium is not None and medium is not opened.store.mapped:
                    medium.close()
            media = storage.mapped_media()
            for device in devices.values():
                device.attach_media(media)
        except BaseException:
            storage.close()
            raise
        return storage

    @property
    def links(self) -> list[Link]:
        """All links."""
        return [link for tier in self.tiers.values() for link in tier.links]

    def links_of(self, device: str) -> list[tuple[Link, int]]:
        """The links that a device uses, each with how many devices take turns on it."""
        return [
            (link, tier.devices_on(link))
            for tier in self.tiers.values()
            for link in (tier.reads[device], tier.write)
        ]

    def slots(self) -> dict[str, int]:
        """How many extents each tier can hold."""
        return {name: tier.store.statistics().slots for name, tier in self.tiers.items()}

    async def put(self, domain: str, tier_name: str, staged: Callable[[], memoryview]) -> Stored:
        """Store what a client has in staging memory; returns when it is durable.

        Raises:
            NotAdmitted: there is no such tier.
            NoSpace, MediumFailure: from the store.
            LinkClosed: too much is queued.
        """
        tier = self.tiers.get(tier_name)
        if tier is None:
            raise NotAdmitted(f"this node has no {tier_name} tier, which the plan names")
        key = self._key(domain)
        digest = b""

        def work() -> int:
            nonlocal digest
            with staged() as source, self._warm.borrow(source.nbytes) as private:
                copy_out(private, address_of(source))
                digest = tier.put(key, private)
                return source.nbytes

        length = await tier.write.run(BACKGROUND_NS, work)
        return Stored(tier, digest, length)

    async def fill(self, device: str, domain: str, stored: Stored, extent: Extent) -> None:
        """Read an extent's bytes into a device's memory, verified, when nothing urgent waits.

        Raises:
            CorruptExtent, UnknownExtent, MediumFailure, MemoryChanged: from the store.
            LinkClosed: too much is queued.
        """
        source, target = self.source(device, domain, stored, ""), self._devices[device]
        await source.link.run(
            BACKGROUND_NS,
            lambda: target.load(extent, source),
            device=device,
        )

    async def fetch(
        self,
        device: str,
        domain: str,
        stored: Stored,
        deadline_ns: int,
        staged: Callable[[], memoryview],
    ) -> int:
        """Read an extent's bytes, verify them, and put them in staging memory; returns how many.

        Raises:
            as `fill`.
        """
        source = self.source(device, domain, stored, "")

        def work() -> int:
            # verified where the client cannot write: else it could make good content look corrupt
            with self._warm.borrow(stored.length) as private, staged() as target:
                # where the device itself is the link, a read inside the host says nothing of it
                length = source.read(private) if source.lender else source.measured(private)
                copy_out(target[:length], address_of(private))
                return length

        return await source.link.run(deadline_ns, work, device=device)

    def source(self, device: str, domain: str, stored: Stored, name: str) -> Source:
        """Where a device reads an extent from."""
        key = self._key(domain)
        store, digest = stored.tier.store, stored.digest
        medium = store.mapped if self._devices[device].copies_itself else None
        return Source(
            stored.tier.reads[device],
            lambda target: store.read_into(digest, key, target),
            name,
            None if medium is None else Lender(store, medium, digest, key),
            device,
        )

    def mapped_media(self) -> dict[MappedMedium, int]:
        """The media from which a device can copy by itself, and where each one's content begins."""
        stores = [tier.store for tier in self.tiers.values()]
        return {one.mapped: one.content_offset for one in stores if one.mapped is not None}

    def find(self, domain: str, digest: bytes) -> Stored:
        """Find content by digest in any tier, and take a reference.

        Raises:
            UnknownExtent: no tier holds it in this domain.
            CorruptExtent: the only copies are known to be corrupt.
        """
        key = self._key(domain)
        failure: UnknownExtent | CorruptExtent | None = None
        for tier in self.tiers.values():
            try:
                return Stored(tier, digest, tier.store.acquire(digest, key))
            except CorruptExtent as error:
                failure = error
            except UnknownExtent as error:
                failure = failure or error
        assert failure is not None, "an agent has at least one tier"  # noqa: S101 - config demands it
        raise failure

    def release(self, stored: Stored) -> None:
        """Give a reference back."""
        stored.tier.store.release(stored.digest)

    def close(self) -> None:
        """Close links, then stores."""
        for tier in self.tiers.values():
            for link in tier.links:
                link.close()
            tier.store.close()
        self.tiers.clear()

    def _key(self, domain: str) -> bytes:
        key = self._keys.get(domain)
        if key is None:
            key = self._keys[domain] = domain_key(domain)
        return key


def _in_place(
    devices: Mapping[str, Device], mapped: Mapping[MappedMedium, int]
) -> dict[str, MappedMedium]:
    """Of the media, those that their tiers can still be made of, by tier; others are let go.

    A file that is not in its place any more takes memory as long as it is mapped.
    """
    kept = {medium: offset for medium, offset in mapped.items() if medium.is_in_place()}
    for device in devices.values() if kept.keys() != mapped.keys() else ():
        device.attach_media(kept)
    for medium in mapped.keys() - kept.keys():
        medium.close()
    return {medium.kind: medium for medium in kept}


def _open_tier(
    settings: TierSettings,
    devices: Mapping[str, Device],
    extent_bytes: int,
    queue_limit: int,
    early: MappedMedium | None,
) -> Tier:
    medium = open_medium(
        settings.name, settings.path, settings.size_bytes, populate=True, early=early
    )
    store = Store.open(medium, extent_bytes)
    name = TierName(settings.name)
    reads: dict[str, Link] = {}
    shared: Link | None = None
    for device_name, device in devices.items():
        if device.copies_itself and store.mapped is not None:
            reads[device_name] = Link(READ_LINK[name].value, queue_limit, device_name)
        else:
            shared = shared or Link(READ_LINK[name].value, queue_limit)
            reads[device_name] = shared
    return Tier(settings.name, store, reads, Link(_WRITE_LINK[name].value, queue_limit))
