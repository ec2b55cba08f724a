"""Copies that belong to no job's stream: the filling of resident extents, probes.

They have a CUDA stream of their own, in which they run one after another, and give way: at most
`IN_FLIGHT` extents are on the way at once, and one begins only while the job's stream waits for its
client or there is none. So a job's extent waits for no more than those. What a stream copies
without a job gives way to them.

For link workers: `copy` blocks, without the interpreter's lock.

Invariant: when `copy` is over, also with an error, nothing reads its source or writes its target.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import CudaFailed, call, driver
from tierline_agent.devices.cuda.pinned import Buffer
from tierline_agent.policy.transfers import IN_FLIGHT

_LOOK_S = 0.0005
_NON_BLOCKING = 1
_BLOCKING_SYNC = 1


class Loader:
    """The copies of one device outside its streams."""

    def __init__(
        self, context: Context, buffers: list[Buffer], link_is_free: Callable[[], bool]
    ) -> None:
        """`link_is_free` tells whether the job's stream leaves the link. Raises CudaFailed."""
        context.enter()
        self._context = context
        self._link_is_free = link_is_free
        self._turns = threading.BoundedSemaphore(IN_FLIGHT)
        self._copying: set[int] = set()
        """Threads that have a copy to make: seen by the stream before they look at it."""
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for buffer in buffers:
            self._buffers.put(buffer)
        attempt = f"make a load stream on GPU {context.ordinal}"
        self._stream = call(attempt, driver.cuStreamCreate, _NON_BLOCKING)
        self._enqueuing = threading.Lock()
        self._events: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        for _ in range(IN_FLIGHT):
            begin = call(attempt, driver.cuEventCreate, _BLOCKING_SYNC)
            end = call(attempt, driver.cuEventCreate, _BLOCKING_SYNC)
            self._events.put((begin, end))

    @contextmanager
    def buffer(self) -> Iterator[Buffer]:
        """A pinned buffer of one extent; waits until one is idle."""
        buffer = self._buffers.get()
        try:
            yield buffer
        finally:
            self._buffers.put(buffer)

    def copy(self, target: int, source: int, size_bytes: int) -> int:
        """Copy from pinned memory; returns nanoseconds of the device. Raises CudaFailed."""
        self._copying.add(threading.get_ident())
        try:
            return self._copy(target, source, size_bytes)
        finally:
            self._copying.discard(threading.get_ident())

    def wanted(self) -> int:
        """How many copies are wanted or under way."""
        return len(self._copying)

    def _copy(self, target: int, source: int, size_bytes: int) -> int:
        self._context.enter()
        attempt = f"load {size_bytes} bytes to GPU {self._context.ordinal}"
        with self._turns:
            while not self._link_is_free():
                time.sleep(_LOOK_S)
            begin, end = self._events.get()
            try:
                with self._enqueuing:
                    call(attempt, driver.cuEventRecord, begin, self._stream)
                    call(
                        *(attempt, driver.cuMemcpyHtoDAsync),
                        *(target, source, size_bytes, self._stream),
                    )
                    call(attempt, driver.cuEventRecord, end, self._stream)
                call(attempt, driver.cuEventSynchronize, end)
                milliseconds = float(call(attempt, driver.cuEventElapsedTime, begin, end))
            except CudaFailed:
                with suppress(CudaFailed):  # a context that is lost copies nothing any more
                    call(attempt, driver.cuStreamSynchronize, self._stream)
                raise
            finally:
                self._events.put((begin, end))
        return int(milliseconds * 1e6)
