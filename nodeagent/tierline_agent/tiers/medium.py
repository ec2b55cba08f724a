"""The interface of every tier's medium: aligned reads, writes and flushes.

A medium is a flat range of bytes that outlives the agent. It knows nothing of extents, digests or
records (`format.py`, `volume.py`), and it takes no locks: callers keep two threads off the same
range. Reads and writes may be called from many threads at once; both return only when the
caller's memory is no longer touched, also when they raise.

Invariant: when `flush` has returned, what was written before in that range survives what
`durability` says. Nothing is promised about the order of unflushed writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

BLOCK_BYTES = 4096
"""Unit of all offsets: the largest logical block of common drives, and a page."""


class Durability(StrEnum):
    """The durability of flushed content."""

    PROCESS = "the end of the agent, not a reboot"
    POWER_LOSS = "a loss of power"
    REBOOT = "a reboot; a loss of power may take the last writes, and digests find them"


class Medium(ABC):
    """A range of `size_bytes` bytes.

    `kind` is the tier's name (dram, pmem, nvme), `path` where it lies, `mode` how it is really
    reached, in words fit for a status page.
    """

    kind: str
    path: str
    mode: str
    durability: Durability
    volatile: bool = False
    """Whether it is a device whose content does not survive a reboot: it is formatted in each."""
    size_bytes: int

    @abstractmethod
    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset`, a multiple of BLOCK_BYTES.

        `target` is writable and begins at a page boundary (ValueError otherwise, where it
        matters); its length is free. Raises MediumFailure.
        """

    @abstractmethod
    def write_from(self, offset: int, source: memoryview) -> None:
        """Write all of `source` at `offset`, and zeros up to the next multiple of BLOCK_BYTES.

        Aligned like `read_into`. Raises MediumFailure or NoSpace.
        """

    @abstractmethod
    def flush(self, offset: int, size_bytes: int) -> None:
        """Make earlier writes to this range durable. Raises MediumFailure or NoSpace."""

    @abstractmethod
    def close(self) -> None:
        """Give the medium back; a second call does nothing."""

    def check_range(self, offset: int, size_bytes: int) -> None:
        """Raise ValueError unless the range is block-aligned at its start and inside."""
        if offset % BLOCK_BYTES or offset < 0 or offset + size_bytes > self.size_bytes:
            raise ValueError(
                f"bytes {offset} to {offset + size_bytes} of a medium of {self.size_bytes} bytes: "
                f"outside, or not at a multiple of {BLOCK_BYTES}"
            )


def blocks(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole blocks, in bytes."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
