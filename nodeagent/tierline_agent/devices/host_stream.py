"""The stream of a job on the host: extents through the ring, in order, as the client consumes them.

One thread, the *runner*, walks over the streamed extents of the job that holds the lease. For
each it waits until its slot is consumed and submits the read to the link of the tier
that has the extent. Links run reads in parallel and may finish out of order; extents are
*published* in order, by whichever worker closes the gap, so the runner never has to wait for two
things at once. How far it runs ahead is bounded by the ring, how much a link has in flight by the
link.

A read that fails, or whose bytes do not match their digest, ends the stream: what was published
stays right, nothing after it is published, and the job is revoked.

A stream that begins ahead of its job walks over what the ring has room for, one extent at a time
and after all transfers for which somebody waits. The words are still those of the job before, if
one runs: it reads there what that job has consumed, and changes nothing. One that is its job's from
`go` on has published what arrived before.

Invariants:

* a slot is written only while the client cannot be reading it (`policy.transfers.consumed_needed`),
* `on_finished` is called once, in the event loop, and after it nothing of this stream writes to
  a slot or touches the flag words.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tierline_agent.concurrency import go_on, note_fault
from tierline_agent.devices.base import Ahead, Extent, StreamOrder, Words
from tierline_agent.errors import LinkClosed, StreamFailed
from tierline_agent.links.link import Transfer
from tierline_agent.policy.prefetch import freed_by, reach
from tierline_agent.policy.transfers import consumed_needed, slot_of
from tierline_agent.tiers.errors import CorruptExtent
from tierline_agent.tiers.sources import Source

_WORKER = "streams"
_WAIT_SLICE_S = 0.01
"""Longest uninterrupted wait for the client: a bound, not a period. `cancel` wakes the wait by the
client's own word, which a client that writes to it all the time takes back; others wait for the end
of the stream then.
"""
_AHEAD_SLICE_S = 0.001
"""The same while the job before it runs, whose word must not be touched to wake the wait."""


class HostWords(Words, Protocol):
    """Flag words on which the agent's own threads wait."""

    def publish(self, count: int) -> None:
        """Say that the first `count` streamed extents are in place, and wake all that wait."""
        ...

    def wait_consumed(self, at_least: int, timeout_s: float) -> bool:
        """Wait until so many are consumed; False after `timeout_s`, or when interrupted."""
        ...


class Filler(Protocol):
    """A device whose extents are host memory."""

    def load(self, extent: Extent, source: Source) -> int:
        """Put a source's bytes at the extent's start, and count them; returns how many."""
        ...


class Stream:
    """The streamed extents of one job."""

    def __init__(
        self,
        *,
        device: Filler,
        sources: Sequence[Source],
        ring: Sequence[Extent],
        words: HostWords,
        deadline_ns: int,
        published: int = 0,
        on_finished: Callable[[Stream], None],
        on_failure: Callable[[Stream, StreamFailed], None],
        on_placed: Callable[[int, float], None] | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """Stream `sources` from number `published` on. The callbacks run in this event loop.

        `on_placed` is told the bytes of each extent that is in place, and the seconds since it
        was submitted, in a worker's thread.
        """
        self._device = device
        self._sources = sources
        self._ring = ring
        self.words = words
        self._deadline_ns = deadline_ns
        self._first = published
        self._ahead = ahead
        self._on_finished = on_finished
        self._on_failure = on_failure
        self._on_placed = on_placed
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Condition()
        """Notified when a stream without a job may go on, or is over."""
        self._published = published
        self._arrived: set[int] = set()
        self._waiting: dict[int, Transfer] = {}
        self._open = 1  # the runner itself, and each transfer that was submitted
        self._cancelled = False
        self._failed = False
        self.streamed_bytes = 0
        self.follower = None
        """On the host what goes ahead is the event loop's to begin."""
        self.finished: asyncio.Future[None] = self._loop.create_future()
        """Done in the event loop, before `on_finished`."""

    @property
    def in_place(self) -> int:
        """Streamed extents that have arrived, without a gap; also after `cancel`."""
        with self._lock:
            return self._published

    def cancel(self, *, resumable: bool = False) -> None:
        """Stop as soon as what is in flight has ended. For the event loop's thread.

        Unless it is `resumable`, the job is over and the client's flag word with it: overwriting
        it wakes the runner. A resumable stream leaves both words as they are, for the next agent.
        """
        with self._lock:
            if self._cancelled or self._open == 0:
                return
            self._cancelled = True
            if not resumable and self._ahead is None:
                self.words.interrupt()
            self._lock.notify_all()
        for _ in self._withdraw():
            self._close_one()

    def hold(self) -> None:
        """Nothing to leave: links' workers copy, without the interpreter."""

    def ring_is_free(self) -> None:
        """All slots may be used: the job before is over. For the event loop's thread."""
        with self._lock:
            if self._ahead is not None:
                self._ahead = Ahead.BETWEEN_JOBS
                self._lock.notify_all()

    def go(self, order: StreamOrder) -> bool:
        """Become the stream of a job. For the event loop's thread."""
        with self._lock:
            if self._ahead is None or self._cancelled or self._failed:
                return False
            self._ahead = None
            self._deadline_ns = order.deadline_ns
            self._on_finished, self._on_failure = order.on_finished, order.on_failure
            if self._published > order.published:
                self.words.publish(self._published)
            self._lock.notify_all()
        for number in self._withdraw():  # to queue again by its deadline
            try:
                self._submit(number)
            except LinkClosed as error:
                self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))
            self._close_one()
        return True

    def stay(self) -> None:
        """Begin no follower: it never does."""

    def _withdraw(self) -> list[int]:
        """Take back what no link has begun; each still counts as open."""
        with self._lock:
            waiting = list(self._waiting.items())
        return [
            number for number, transfer in waiting if self._sources[number].link.cancel(transfer)
        ]

    def run(self) -> None:
        """Walk over the extents; the runner's thread."""
        try:
            for number in range(self._first, len(self._sources)):
                if not (self._wait_ahead(number) and self._wait_for_slot(number)):
                    break
                self._submit(number)
            else:
                self._wait_ahead(len(self._sources))
        except (LinkClosed, OSError) as error:
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))
        except Exception as error:  # it ends this stream, and neither the thread nor the device
            note_fault(_WORKER)
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))
        finally:
            self._close_one()

    def _wait_ahead(self, number: int) -> bool:
        """Wait until this one's turn without a job has come, or a job; False when it is over."""
        extents, slots = len(self._sources), len(self._ring)
        while True:
            with self._lock:
                if self._cancelled or self._failed:
                    return False
                if self._ahead is None:
                    return True
                if self._open > 1 or number >= reach(extents, slots):
                    self._lock.wait()
                    continue
                if self._ahead is Ahead.BETWEEN_JOBS:
                    return True
            if self.words.wait_consumed(freed_by(number, extents, slots), _AHEAD_SLICE_S):
                return not self._stopped()

    def _wait_for_slot(self, number: int) -> bool:
        needed = consumed_needed(number, len(self._ring))
        while not self._stopped():
            if needed == 0 or self.words.wait_consumed(needed, _WAIT_SLICE_S):
                return not self._stopped()
        return False

    def _stopped(self) -> bool:
        with self._lock:
            return self._cancelled or self._failed

    def _submit(self, number: int) -> None:
        source = self._sources[number]
        slot = self._ring[slot_of(number, len(self._ring))]

        def work() -> int:
            return self._device.load(slot, source)

        submitted_s = time.monotonic()

        def done(moved: int, failure: BaseException | None) -> None:
            self._transferred(number, moved, failure)
            if failure is None and self._on_placed is not None:
                self._on_placed(moved, time.monotonic() - submitted_s)

        with self._lock:
            if self._cancelled:
                return
            self._waiting[number] = source.link.submit(
                self._deadline_ns, work, done, device=source.device
            )
            self._open += 1

    def _transferred(self, number: int, moved: int, failure: BaseException | None) -> None:
        try:
            if failure is not None:
                self._fail(explain(self._sources[number], failure))
                return
            with self._lock:
                self._waiting.pop(number, None)
                self._arrived.add(number)
                self.streamed_bytes += moved
                self._publish()
                self._lock.notify_all()
        finally:
            self._close_one()

    def _publish(self) -> None:
        """Publish the prefix that has arrived, but not after `cancel`; the lock is held.

        It may grow after a failure, up to the extent that failed and never arrives.
        """
        count = self._published
        while count in self._arrived:
            self._arrived.remove(count)
            count += 1
        if count != self._published:
            self._published = count
            if not self._cancelled and self._ahead is None:
                self.words.publish(count)

    def _fail(self, failure: StreamFailed) -> None:
        with self._lock:
            if self._failed or self._cancelled:
                return
            self._failed = True
            self._lock.notify_all()
        self._loop.call_soon_threadsafe(self._on_failure, self, failure)

    def _close_one(self) -> None:
        with self._lock:
            self._open -= 1
            self._lock.notify_all()
            if self._open:
                return
        self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self.finished.set_result(None)
        self._on_finished(self)


def explain(source: Source, failure: BaseException) -> StreamFailed:
    """Why a stream ends at this source."""
    corrupt = isinstance(failure, CorruptExtent)
    what = "its bytes do not match its digest" if corrupt else str(failure)
    explained = StreamFailed(f"cannot stream {source.name}: {what}", corrupt=corrupt)
    explained.__cause__ = failure
    return explained


class Runnable(Protocol):
    """A stream of any device."""

    def run(self) -> None:
        """Walk over the extents; the runner's thread."""
        ...


class StreamRunner:
    """The thread of one device that runs streams, one after another."""

    def __init__(self, name: str) -> None:
        self._streams: queue.SimpleQueue[Runnable | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=go_on, args=(_WORKER, self._run), name=f"{name}-streams", daemon=True
        )
        self._thread.start()

    def start(self, stream: Runnable) -> None:
        """Run a stream as soon as the one before has been submitted or cancelled."""
        self._streams.put(stream)

    def close(self) -> None:
        """End the thread, after the streams that were started; cancel them before."""
        self._streams.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (stream := self._streams.get()) is not None:
            stream.run()
