"""Staging memory: a memfd through which a client sends and gets the bytes of single extents.

It is host memory on every device. The client may change it at any time: what comes from it is
copied before it is looked at.
"""

from __future__ import annotations

from tierline_agent.devices.memfd import SharedMemory


class HostStaging:
    """Staging memory of one client."""

    def __init__(self, memory: SharedMemory, slot_bytes: int) -> None:
        self._memory = memory
        self._slot_bytes = slot_bytes

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> HostStaging:
        """Make it, of `slots` slots of `slot_bytes` bytes. Raises OSError."""
        return cls(SharedMemory.create("tierline-staging", slots * slot_bytes), slot_bytes)

    def slot(self, index: int, length: int) -> memoryview:
        """The first `length` bytes of slot `index`."""
        start = index * self._slot_bytes
        return self._memory.view[start : start + length]

    def export(self) -> int:
        """Return a writable descriptor."""
        return self._memory.export(writable=True)

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()
