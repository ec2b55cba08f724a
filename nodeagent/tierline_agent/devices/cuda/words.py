"""The flag words of an arena on a GPU: a page of host memory that both sides' streams address.

The agent's copy stream waits for `consumed` and writes `published`; the CPU touches the words only
before a job, to read where one stands after a restart, and to end waits. A third word is the CPU's
alone: by it the agent asks a job to give the device away.

Waits compare cyclically: a word satisfies "at least n" while the difference is below 2^31. So what
ends every wait is the largest positive number, not all ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import call, driver
from tierline_agent.devices.memfd import SharedMemory
from tierline_client import words

PUBLISHED_OFFSET = 0
CONSUMED_OFFSET = 64
ASKED_OFFSET = 128
_EVERYTHING = 0x7FFFFFFF
_DEVICEMAP = 0x02


class CudaWords:
    """The flag words in a control page."""

    def __init__(
        self, memory: SharedMemory, context: Context, on_close: Callable[[CudaWords], None]
    ) -> None:
        """Take over the page, also if this raises CudaFailed; `on_close` is to call `unpin`."""
        self._on_close = on_close
        self._memory = memory
        self._context = context
        self._address = memory.address()
        try:
            context.enter()
            attempt = f"pin a control page for GPU {context.ordinal}"
            size_bytes = memory.size_bytes
            call(attempt, driver.cuMemHostRegister, self._address, size_bytes, _DEVICEMAP)
            there = int(call(attempt, driver.cuMemHostGetDevicePointer, self._address, 0))
        except BaseException:
            memory.close()
            raise
        self.published_address = there + PUBLISHED_OFFSET
        """Where the device finds the agent's word."""
        self.consumed_address = there + CONSUMED_OFFSET
        """Where the device finds the client's word."""
        self._published = ctypes.c_uint32.from_address(self._address + PUBLISHED_OFFSET)
        self._consumed = ctypes.c_uint32.from_address(self._address + CONSUMED_OFFSET)
        self._asked = ctypes.c_uint32.from_address(self._address + ASKED_OFFSET)

    @property
    def published(self) -> int:
        """Streamed extents in place, as the page says."""
        return self._published.value

    @property
    def consumed(self) -> int:
        """Streamed extents that the client says it is done with."""
        return self._consumed.value

    def reset(self, published: int = 0) -> None:
        """Set both words before a job."""
        self.restart(published, 0)

    def restart(self, published: int, consumed: int) -> None:
        """Set both words, before a job goes on, and ask for nothing; no stream uses them now."""
        self._asked.value = 0
        self._published.value = published
        self._consumed.value = consumed

    def ask(self) -> None:
        """Ask the client to stop its GPU at the next gate, and wake the thread that does it."""
        words.publish(self._address + ASKED_OFFSET, 1)

    def ask_no_more(self) -> None:
        """Withdraw that."""
        words.publish(self._address + ASKED_OFFSET, 0)

    def publish(self, count: int) -> None:
        """Say that so many are in place, where the device has nothing to copy before it says so."""
        self._published.value = count

    def interrupt(self) -> None:
        """End the device's waits. Until they have ended, a client may write its word once more."""
        self._consumed.value = _EVERYTHING

    def export(self) -> int:
        """Return a writable descriptor of the page."""
        return self._memory.export(writable=True)

    def close(self) -> None:
        """Give the page back, as soon as the device can unpin it without waiting."""
        self._on_close(self)

    def unpin(self) -> None:
        """Unpin and unmap the page. The driver waits until everything that is enqueued has run."""
        self._context.enter()
        driver.cuMemHostUnregister(self._address)
        self._memory.close()
