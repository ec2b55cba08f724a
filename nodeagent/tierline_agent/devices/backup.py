"""A backup of extents of the host, in private memory; copies are made without Python's lock."""

from __future__ import annotations

from collections.abc import Sequence

from tierline_agent.devices.base import Extent
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.tiers.memory import address_of, copy, scratch


class HostBackup:
    """Room for the first extents of a workspace."""

    def __init__(self, extents: int, extent_bytes: int) -> None:
        """Raises OSError: there is no such memory."""
        self._extent_bytes = extent_bytes
        self._memory = scratch(extents * extent_bytes)

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
        self._memory.release()

    def _place(self, number: int) -> memoryview:
        return self._memory[number * self._extent_bytes : (number + 1) * self._extent_bytes]


def _view(extent: Extent) -> memoryview:
    if not isinstance(extent, SharedMemory):
        raise TypeError(f"{extent!r} is not an extent of the host")
    return extent.view
