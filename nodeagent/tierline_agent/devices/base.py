"""What a device is to the rest of the agent.

A device makes extents, lends them to clients as descriptors, lets a link worker put bytes into
one, and carries the flag words of a job's stream. It knows nothing of tasks, domains, quotas or
tiers; those are the pool's and the sessions'.

The shape serves the host and a GPU alike:

* `fill` runs a *read* that wants host memory to read into. The host device hands out the extent's
  own mapping; a GPU hands out pinned memory and copies it over, in its own stream, before `fill`
  returns. So a link worker is never concerned with where an extent is.
* `Words` are one arena's two flag words. On the host both sides use futexes; on a GPU `publish`
  becomes a stream memory operation behind the copies.

Invariant: an extent's memory stays mapped in the agent from `create_extent` or `adopt_extent`
until `destroy_extent`; no mapping is edited while a job runs.

All methods may raise OSError. Those that take a descriptor leave it open: the caller owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Identity:
    """What makes the same memory recognisable when its descriptor comes back."""

    device: int
    inode: int


class Extent(Protocol):
    """One extent of fast memory."""

    @property
    def identity(self) -> Identity:
        """The memory's identity, the same before and after a restart."""
        ...

    @property
    def mapped(self) -> bool:
        """Whether the agent still has it."""
        ...


class Words(Protocol):
    """The flag words of one arena. Everything the client writes is hostile."""

    @property
    def published(self) -> int:
        """Streamed extents in place."""
        ...

    @property
    def consumed(self) -> int:
        """Streamed extents that the client will not read again in this job."""
        ...

    def reset(self) -> None:
        """Zero both words, before a job is granted."""
        ...

    def publish(self, count: int) -> None:
        """Say that the first `count` streamed extents are in place, and wake who waits."""
        ...

    def wait_consumed(self, at_least: int, timeout_s: float) -> bool:
        """Wait until so many are consumed; False after `timeout_s`, or when interrupted."""
        ...

    def interrupt(self) -> None:
        """Wake `wait_consumed` for good: the job is over, its words mean nothing any more."""
        ...

    def export(self) -> int:
        """Return a descriptor of the control page that the caller owns, writable."""
        ...

    def close(self) -> None:
        """Give the page back."""
        ...


class Staging(Protocol):
    """Memory through which a client sends and gets the bytes of single extents."""

    def slot(self, index: int, length: int) -> memoryview:
        """The first `length` bytes of a slot; the client may change them at any time."""
        ...

    def export(self) -> int:
        """Return a descriptor that the caller owns, writable."""
        ...

    def close(self) -> None:
        """Give the memory back, once no view of a slot is left."""
        ...


class Device(Protocol):
    """One device."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        ...

    @property
    def extent_bytes(self) -> int:
        """Size of an extent, bytes."""
        ...

    @property
    def fast_bytes(self) -> int:
        """Fast memory that may be used, bytes."""
        ...

    @property
    def product(self) -> str:
        """What the hardware calls itself."""
        ...

    def create_extent(self) -> Extent:
        """Make an extent; its bytes are zero."""
        ...

    def adopt_extent(self, descriptor: int) -> Extent:
        """Take back an extent that an earlier agent made, from a client's read-only descriptor.

        Raises:
            DescriptorRefused: it is not memory of the right kind, size and seals.
        """
        ...

    def destroy_extent(self, extent: Extent) -> None:
        """Unmap and close; the memory is free when the last client that maps it is gone."""
        ...

    def export_extent(self, extent: Extent) -> int:
        """Return a read-only descriptor that the caller owns."""
        ...

    def fill(self, extent: Extent, read: Callable[[memoryview], int]) -> int:
        """Let `read` put bytes at the extent's start; returns how many. Blocks; for link workers.

        What `read` raises passes through; the extent's bytes are then undefined.
        """
        ...

    def create_words(self) -> Words:
        """Make a control page."""
        ...

    def adopt_words(self, descriptor: int) -> Words:
        """Take back a control page. Raises DescriptorRefused as `adopt_extent`."""
        ...

    def create_staging(self, slots: int) -> Staging:
        """Make staging memory of `slots` extents."""
        ...
