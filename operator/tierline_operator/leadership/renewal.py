"""The Lease is renewed in a thread of its own, with a connection of its own.

A leader with much to do may keep its event loop busy for longer than the Lease lasts: thousands of
objects to read at once, on two cores that others use as well. The thread has nothing to do but to
renew, and is given the processor after some milliseconds, whatever the loop does.

What that must not hide is a loop that hangs: a leader that does nothing would lead for ever. So the
loop says that it turns, and one that has not for long is not renewed for (lease.py).

Invariant: what the thread does changes only when the Lease is renewed, never whether something may
be written: `Leadership.check` stands before each write, in the loop, as ever. The thread's
connection is used by nobody else, and the loop's by nobody in the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from tierline_kube.client import Kube
from tierline_operator.leadership.lease import Leadership

T = TypeVar("T")
_TURN_S: Final = 1.0
"""How often the loop says that it turns."""


class Leading:
    """Seeks, keeps and gives up the Lease for the loop that calls it."""

    def __init__(self, leadership: Leadership, kube: Kube) -> None:
        """Prepare it; `kube` is what `leadership` asks, and not open yet."""
        self._leadership = leadership
        self._kube = kube

    async def __aenter__(self) -> Self:
        """Start the thread, and connect. Raises NoCluster."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._thread.start()
        try:
            await self._there(self._kube.__aenter__())
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection, and end the thread."""
        await self._there(self._kube.__aexit__())
        await self._end()

    async def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        await self._there(self._leadership.acquire())

    async def keep(self) -> None:
        """Renew for as long as that works and this loop turns; raises NoLongerLeader."""
        kept = self._there(self._leadership.keep())
        try:
            while not kept.done():
                self._leadership.turn()
                await asyncio.wait({kept}, timeout=_TURN_S)
            await kept
        finally:
            kept.cancel()

    async def release(self) -> None:
        """Give the Lease up; call when all writes ended."""
        await self._there(self._leadership.release())

    def _there(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Do something in the thread; when this future is cancelled, so is the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
