"""A link: one direction of one tier, two worker threads, a queue by deadline for each device.

A transfer is a function that moves bytes and says how many; what it reads and writes is the
caller's. The link decides when it runs, and measures. It knows neither tiers nor extents.

A storage tier has one link for all devices of the node. They take turns (`policy.turns`), so a
device gets its part of the link however much the others ask for; inside a device, deadlines count.

A GPU copies by itself from memory that it has pinned. What it moved so is only counted here, by
`account`. Of a transfer that runs here only a part is the link's own work, and the rest digests and
copies inside the host: it calls `measure` for the link's part.

Invariants: at most `IN_FLIGHT` transfers run at once; the next one is always the most urgent that
waits of the device whose turn it is; between two transfers of a device for which a job waits, no
other device begins more than one; while a device's job is promised the link (`promise`), none of
its transfers without a deadline begins. `done` is called exactly once for a transfer that was not
cancelled in time, in the worker's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tierline_agent.concurrency import go_on
from tierline_agent.errors import LinkClosed
from tierline_agent.links.meter import LinkMeter, LinkRate
from tierline_agent.policy.transfers import BACKGROUND_NS, IN_FLIGHT, urgency
from tierline_agent.policy.turns import next_device

Work = Callable[[], int]
"""Moves bytes, returns how many."""
Done = Callable[[int, BaseException | None], None]
"""Told the bytes moved (0 on failure) and the failure."""


@dataclass(order=True)
class Transfer:
    """A transfer that waits or runs."""

    sort_key: tuple[int, int]
    work: Work = field(compare=False)
    done: Done = field(compare=False)
    begun: bool = field(compare=False, default=False)
    cancelled: bool = field(compare=False, default=False)


class Link:
    """One direction of a tier."""

    def __init__(self, name: str, queue_limit: int = 16384, device: str = "") -> None:
        """`device` is the name of the one at its end, empty if it serves them all.

        `queue_limit` is how many transfers of one device may wait.
        """
        self.name = name
        self.device = device
        self.meter = LinkMeter()
        self.on_drift: Callable[[Link], None] | None = None
        """Called in a worker's thread when the link becomes slower than planned."""
        self._queue_limit = queue_limit
        self._queues: dict[str, list[Transfer]] = {}
        """Transfers that wait, by device."""
        self._arrivals = 0
        self._turns = 0
        self._last_turn: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        """Until when a job of each device counts on the link, CLOCK_MONOTONIC nanoseconds."""
        self._began_ns = time.monotonic_ns()
        self._closed = False
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(
                target=go_on,
                args=("link", self._run),
                name=f"{device}{name}-{index}",
                daemon=True,
            )
            for index in range(IN_FLIGHT)
        ]
        for worker in self._workers:
            worker.start()

    def __str__(self) -> str:
        return f"{self.name} of {self.device}" if self.device else self.name

    def submit(self, deadline_ns: int, work: Work, done: Done, *, device: str = "") -> Transfer:
        """Queue a transfer of `device`, or of none: they count as one more device.

        Raises:
            LinkClosed: the link is shut down or its queue is full.
        """
        with self._changed:
            if self._closed:
                raise LinkClosed(f"cannot transfer on {self.name}: the link is shut down")
            queue = self._queues.setdefault(device, [])
            if len(queue) >= self._queue_limit:
                raise LinkClosed(
                    f"cannot transfer on {self.name}: {self._queue_limit} transfers wait already"
                )
            self._arrivals += 1
            transfer = Transfer(urgency(deadline_ns, self._arrivals), work, done)
            heapq.heappush(queue, transfer)
            self._changed.notify()
        return transfer

    def cancel(self, transfer: Transfer) -> bool:
        """Take a transfer out of the queue; False if it has begun (its `done` will be called)."""
        with self._changed:
            if transfer.begun:
                return False
            transfer.cancelled = True
            return True

    async def run(self, deadline_ns: int, work: Work, *, device: str = "") -> int:
        """Run a transfer as `submit` would and wait for it; returns the bytes moved.

        Raises what `submit` and `work` raise.

        Cancelling the wait takes the transfer out of the queue; one that has begun is waited for,
        because it still writes to its destination.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def settle(moved: int, failure: BaseException | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(moved)
            else:
                future.set_exception(failure)

        def done(moved: int, failure: BaseException | None) -> None:
            loop.call_soon_threadsafe(settle, moved, failure)

        transfer = self.submit(deadline_ns, work, done, device=device)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done() and not self.cancel(transfer):
                await asyncio.wait([future])
                future.exception()
            raise

    def promise(self, device: str, until_ns: int) -> None:
        """A job of the device streams: nothing without a deadline begins for it until then."""
        with self._changed:
            self._promised[device] = until_ns

    def release(self, device: str) -> None:
        """The job streams no more."""
        with self._changed:
            self._promised.pop(device, None)
            self._changed.notify_all()

    def measure(self, work: Work) -> int:
        """Do a part of a transfer as the link's own work, and count it."""
        with self._changed:
            self.meter.began(time.monotonic_ns())
        moved: int | None = None
        try:
            moved = work()
        finally:
            with self._changed:
                was_drifted = self.meter.drifted
                self.meter.ended(time.monotonic_ns(), moved)
                drifted = self.meter.drifted and not was_drifted
        if drifted and self.on_drift is not None:
            self.on_drift(self)
        return moved

    def account(self, size_bytes: int, duration_ns: int | None) -> None:
        """Count what a device moved by itself, in so much time of its own clock if it was timed."""
        with self._changed:
            was_drifted = self.meter.drifted
            self.meter.moved(size_bytes, duration_ns)
            drifted = self.meter.drifted and not was_drifted
        if drifted and self.on_drift is not None:
            self.on_drift(self)

    def rate(self) -> LinkRate | None:
        """The bandwidth and overhead measured at the start."""
        return self.meter.planned

    def busy_ns(self) -> int:
        """Time in which the link was moving bytes, up to now."""
        with self._changed:
            return self.meter.busy_ns(time.monotonic_ns())

    def busy_share(self) -> float:
        """Part of the link's life in which it was moving bytes."""
        return self.busy_ns() / max(1, time.monotonic_ns() - self._began_ns)

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        with self._changed:
            self._closed = True
            dropped = [transfer for queue in self._queues.values() for transfer in queue]
            self._queues.clear()
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()
        for transfer in dropped:
            if not transfer.cancelled:
                transfer.done(0, LinkClosed(f"{self.name} was shut down"))

    def _run(self) -> None:
        while (transfer := self._next()) is not None:
            moved = 0
            failure: BaseException | None = None
            try:
                moved = transfer.work()
            except BaseException as error:  # it belongs to the waiting caller, not to this thread
                failure = error
            transfer.done(moved, failure)

    def _next(self) -> Transfer | None:
        """Wait for the next transfer and begin it; None when the link is closed."""
        with self._changed:
            while (transfer := self._pop()) is None:
                if self._closed:
                    return None
                self._changed.wait(self._promises_end_s())
            transfer.begun = True
            return transfer

    def _promises_end_s(self) -> float | None:
        """When the next promise runs out that something waits for; None if none does. Locked."""
        ends = [
            self._promised[device]
            for device, queue in self._queues.items()
            if queue and device in self._promised
        ]
        return max(0.0, min(ends) - time.monotonic_ns()) / 1e9 if ends else None

    def _pop(self) -> Transfer | None:
        """Take out what is next; None if nothing waits. Locked."""
        for queue in self._queues.values():
            while queue and queue[0].cancelled:
                heapq.heappop(queue)
        now_ns = time.monotonic_ns()
        waiting = {
            device: queue[0].sort_key[0]
            for device, queue in self._queues.items()
            if queue
            and (queue[0].sort_key[0] < BACKGROUND_NS or self._promised.get(device, 0) <= now_ns)
        }
        if not waiting:
            return None
        device = next_device(waiting, self._last_turn)
        self._turns += 1
        self._last_turn[device] = self._turns
        return heapq.heappop(self._queues[device])
