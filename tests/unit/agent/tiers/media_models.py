"""Media for tests: one in memory that can lose power, and one that fails on demand."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from tierline_agent.tiers import Durability, Medium
from tierline_agent.tiers.errors import failed
from tierline_agent.tiers.medium import blocks
from tierline_agent.tiers.memory import scratch

SECTOR_BYTES = 512


class MemoryMedium(Medium):
    """Bytes in memory that know which sectors were flushed.

    `after_power_loss` is what a drive with a volatile cache may hold: each sector that was written
    since its last flush is in one of the states it was in since then, chosen at random.
    """

    def __init__(self, size_bytes: int) -> None:
        self.kind, self.path, self.mode = "nvme", "memory", "model"
        self.durability = Durability.POWER_LOSS
        self.size_bytes = size_bytes
        self.content = bytearray(size_bytes)
        self.unflushed: dict[int, list[bytes]] = {}
        self.closed = False

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check_range(offset, target.nbytes)
        target[:] = self.content[offset : offset + target.nbytes]

    def write_from(self, offset: int, source: memoryview) -> None:
        padded = bytes(source).ljust(blocks(source.nbytes), b"\0")
        self.check_range(offset, len(padded))
        for at in range(offset, offset + len(padded), SECTOR_BYTES):
            before = bytes(self.content[at : at + SECTOR_BYTES])
            self.unflushed.setdefault(at, []).append(before)
        self.content[offset : offset + len(padded)] = padded

    def flush(self, offset: int, size_bytes: int) -> None:
        self.check_range(offset, size_bytes)
        for at in [a for a in self.unflushed if offset <= a < offset + blocks(size_bytes)]:
            del self.unflushed[at]

    def close(self) -> None:
        self.closed = True

    def after_power_loss(self, chance: random.Random) -> MemoryMedium:
        survivor = MemoryMedium(self.size_bytes)
        survivor.content[:] = self.content
        for at, earlier in self.unflushed.items():
            states = [*earlier, bytes(self.content[at : at + SECTOR_BYTES])]
            survivor.content[at : at + SECTOR_BYTES] = chance.choice(states)
        return survivor

    def reopened(self) -> MemoryMedium:
        """The same bytes for another process, as after an orderly end."""
        again = MemoryMedium(self.size_bytes)
        again.content[:] = self.content
        return again


class WatchedMedium(Medium):
    """Calls `before(operation, offset)` ahead of each operation; it may raise OSError."""

    def __init__(self, inner: Medium, before: Callable[[str, int], None]) -> None:
        self.inner, self._before = inner, before
        self.kind, self.path, self.mode = inner.kind, inner.path, inner.mode
        self.durability, self.size_bytes = inner.durability, inner.size_bytes

    def _watch(self, operation: str, offset: int) -> None:
        try:
            self._before(operation, offset)
        except OSError as error:
            raise failed(operation, self.path, offset, error) from error

    def read_into(self, offset: int, target: memoryview) -> None:
        self._watch("read", offset)
        self.inner.read_into(offset, target)

    def write_from(self, offset: int, source: memoryview) -> None:
        self._watch("write", offset)
        self.inner.write_from(offset, source)

    def flush(self, offset: int, size_bytes: int) -> None:
        self._watch("flush", offset)
        self.inner.flush(offset, size_bytes)

    def close(self) -> None:
        self.inner.close()


class FailingMedium(WatchedMedium):
    """Gives EIO for an operation whenever `fails(operation, offset)` says so."""

    def __init__(self, inner: Medium) -> None:
        super().__init__(inner, self._fail)
        self.fails: Callable[[str, int], bool] = lambda _operation, _offset: False

    def _fail(self, operation: str, offset: int) -> None:
        if self.fails(operation, offset):
            raise OSError(errno.EIO, "input/output error")


def content(seed: int, size_bytes: int) -> memoryview:
    """Reproducible bytes in page-aligned memory, different for each seed."""
    view = scratch(size_bytes)
    view[:] = random.Random(seed).randbytes(size_bytes)  # noqa: S311 - reproducible, not secret
    return view
