"""A backup of extents of a GPU: pinned host memory, and a stream of its own for the copies.

The copies run while no job does, so they give way to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tierline_agent.devices.backup import BackupMemory
from tierline_agent.devices.base import Extent
from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import call, driver
from tierline_agent.devices.cuda.memory import CudaExtent
from tierline_agent.devices.cuda.pinned import pin, unpin
from tierline_agent.tiers.memory import address_of

_NON_BLOCKING = 1


class CudaBackup:
    """Room for the first extents of a workspace."""

    def __init__(
        self,
        context: Context,
        memory: BackupMemory,
        extent_bytes: int,
        on_close: Callable[[CudaBackup], None],
    ) -> None:
        """Take over `memory`. `on_close` is to call `unpin`. Raises CudaFailed."""
        self._memory = memory
        self._on_close = on_close
        self._context = context
        self._extent_bytes = extent_bytes
        self._base = address_of(memory.content)
        try:
            pin(context, "a workspace's backup", self._base, memory.content.nbytes)
            attempt = f"make a stream for workspaces on GPU {context.ordinal}"
            self._stream = call(attempt, driver.cuStreamCreate, _NON_BLOCKING)
        except OSError:
            memory.close()
            raise

    @property
    def memory(self) -> BackupMemory:
        """Where it lies."""
        return self._memory

    def save(self, extents: Sequence[Extent]) -> None:
        """Copy the extents here. Raises CudaFailed."""
        self._context.enter()
        attempt = f"save {len(extents)} extents of a workspace from GPU {self._context.ordinal}"
        places = ((self._place(number), _address(one)) for number, one in enumerate(extents))
        self._copy_all(attempt, driver.cuMemcpyDtoHAsync, places)

    def restore(self, extents: Sequence[Extent]) -> None:
        """Copy back what `save` copied. Raises CudaFailed."""
        self._context.enter()
        attempt = f"restore {len(extents)} extents of a workspace on GPU {self._context.ordinal}"
        places = ((_address(one), self._place(number)) for number, one in enumerate(extents))
        self._copy_all(attempt, driver.cuMemcpyHtoDAsync, places)

    def _copy_all(self, attempt: str, copy: Any, places: Iterable[tuple[int, int]]) -> None:
        """From the second to the first of each. None is under way when this ends, or raises."""
        try:
            for target, source in places:
                call(attempt, copy, target, source, self._extent_bytes, self._stream)
        finally:
            call(attempt, driver.cuStreamSynchronize, self._stream)

    def _place(self, number: int) -> int:
        return self._base + number * self._extent_bytes

    def close(self) -> None:
        """Give the memory back, as soon as the device can unpin it without waiting."""
        self._on_close(self)

    def unpin(self) -> None:
        """Unpin the memory and give it back; some 20 ms a GiB."""
        self._context.enter()
        driver.cuStreamDestroy(self._stream)
        unpin(self._context, self._base, self._memory.content.nbytes)
        self._memory.close()


def _address(extent: Extent) -> int:
    if not isinstance(extent, CudaExtent):
        raise TypeError(f"{extent!r} is not an extent of a GPU")
    return extent.address
