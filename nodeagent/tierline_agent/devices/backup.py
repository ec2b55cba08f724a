"""Backups of workspaces: host memory that keeps what a task has in extents while others use them.

A backup is a memfd, so that its client can keep it when the agent ends and offer it to the next
one. After the content lies a page with one word: whether the content is here, or in the extents.
It is set after the last copy into the backup, and cleared before the client's next job is granted;
so at any moment, also when the agent is killed, it names a place where the content is whole.

`HostBackup` is that of the host's extents; copies are made without Python's lock.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Self

from tierline_agent.devices.base import Extent
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.tiers.memory import address_of, copy

_SAVED = (1).to_bytes(4, "little")
_NOT_SAVED = bytes(4)


class BackupMemory:
    """Room for the first extents of a workspace, and the word."""

    def __init__(self, memory: SharedMemory, content_bytes: int) -> None:
        self._memory = memory
        self.content = memory.view[:content_bytes]
        self._word = memory.view[content_bytes : content_bytes + len(_SAVED)]

    @classmethod
    def create(cls, extents: int, extent_bytes: int) -> Self:
        """Raises OSError: there is no such memory."""
        content_bytes = extents * extent_bytes
        memory = SharedMemory.create("tierline-backup", content_bytes + mmap.PAGESIZE)
        try:
            memory.populate()
        except OSError:
            memory.close()
            raise
        return cls(memory, content_bytes)

    @classmethod
    def adopt(cls, descriptor: int, extents: int, extent_bytes: int) -> Self:
        """An earlier agent's backup; `descriptor` stays the caller's. Raises DescriptorRefused."""
        content_bytes = extents * extent_bytes
        size_bytes = content_bytes + mmap.PAGESIZE
        return cls(SharedMemory.adopt(descriptor, size_bytes, "a backup"), content_bytes)

    @property
    def saved(self) -> bool:
        """Whether the content is here."""
        return bytes(self._word) == _SAVED

    @saved.setter
    def saved(self, here: bool) -> None:
        self._word[:] = _SAVED if here else _NOT_SAVED

    def export(self) -> int:
        """Return a descriptor that the caller owns. Raises OSError."""
        return self._memory.export(writable=True)

    def close(self) -> None:
        """Give the memory back; it stays while the client keeps its descriptor."""
        self.content.release()
        self._word.release()
        self._memory.close()


class HostBackup:
    """A backup of extents of the host."""

    def __init__(self, memory: BackupMemory, extent_bytes: int) -> None:
        self._memory = memory
        self._extent_bytes = extent_bytes

    @property
    def memory(self) -> BackupMemory:
        """Where it lies."""
        return self._memory

    def save(self, extents: Sequence[Extent]) -> None:
        """Copy the extents here."""
        for number, extent in enumerate(extents):
            copy(address_of(self._place(number)), _view(extent))

    def restore(self, extents: Sequence[Extent]) -> None:
        """Copy back what `save` copied."""
        for number, extent in enumerate(extents):
            copy(address_of(_view(extent)), self._place(number))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()

    def _place(self, number: int) -> memoryview:
        return self._memory.content[number * self._extent_bytes : (number + 1) * self._extent_bytes]


def _view(extent: Extent) -> memoryview:
    if not isinstance(extent, SharedMemory):
        raise TypeError(f"{extent!r} is not an extent of the host")
    return extent.view
