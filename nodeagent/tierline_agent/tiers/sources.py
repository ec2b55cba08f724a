"""Where the bytes of an extent come from, as a stream or a load sees it.

Any device can have them *read* into host memory by the source's link. A device that copies by
itself can also use them where they lie, if their medium is memory: the source then has a `lender`.

Invariant: what `lend` gives stays in its place, with right bytes, until `take_back`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tierline_agent.links.link import Link
from tierline_agent.tiers import MappedMedium, Store


@dataclass(frozen=True)
class Place:
    """Bytes on a mapped medium."""

    medium: MappedMedium
    offset: int
    length: int


@dataclass(frozen=True)
class Lender:
    """Content that lies in memory."""

    store: Store
    medium: MappedMedium
    digest: bytes
    key: bytes

    def ready(self) -> bool:
        """Whether `lend` will not have to verify first. Raises CorruptExtent, UnknownExtent."""
        return self.store.may_lend(self.digest, self.key)

    def verify(self) -> int:
        """Make it ready, which reads it all; returns its bytes. Raises as `lend`."""
        _, length = self.store.lend(self.digest, self.key)
        self.store.take_back(self.digest)
        return length

    def lend(self) -> Place:
        """Where it lies, until `take_back`. Raises CorruptExtent, UnknownExtent, OSError."""
        offset, length = self.store.lend(self.digest, self.key)
        return Place(self.medium, offset, length)

    def take_back(self) -> None:
        """It is not used any more; once for each `lend`."""
        self.store.take_back(self.digest)


@dataclass(frozen=True)
class Source:
    """Where an extent comes from."""

    link: Link
    read: Callable[[memoryview], int]
    """Reads and verifies the extent; returns its bytes. Raises CorruptExtent, OSError."""
    name: str
    """For messages."""
    lender: Lender | None = None
    """Set if the device is to copy the extent by itself."""
    device: str = ""
    """The device whose turn on the link a read takes."""

    def measured(self, target: memoryview) -> int:
        """Read as the link's own work, in a transfer of it."""
        return self.link.measure(lambda: self.read(target))
