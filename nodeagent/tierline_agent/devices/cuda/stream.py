"""The stream of a job on a GPU: the device copies by itself, the agent keeps it supplied.

For each streamed extent, in order, three operations go into the device's copy stream: wait until
the ring slot is consumed, copy, publish. No CPU is between two copies. The runner's thread keeps
`depth` extents enqueued, some milliseconds of copying, so that the device stays busy while another
thread has the interpreter's lock; it looks at the copies' events a thousand times a second, takes
what has ended, and enqueues more. For a job that may give the device away it is no more than its
plan has others wait for, two, and the runner looks the more often.

Where the bytes are:

* in memory that the device has pinned (`Source.lender`): copied from their place. Content that this
  process has not verified yet is verified first, by a worker of its link.
* elsewhere: read ahead by their link's workers into pinned buffers, as many as there are, verified
  there, and copied in their turn.

What the client's word says is only ever waited for by the device. What has arrived, and when the
stream is over, is known by events. A client that is gone cannot hold the stream: `cancel` sets its
word to a value that satisfies every wait, again and again until the last wait has ended, because
the client's own device may still write there.

A failure is told when what was enqueued before has run out, which needs nothing of the client but
that it goes on: from then on the client fills its ring itself, and no late copy of the agent's may
land there, and no late count may fall below the client's own. That includes what a refused call
leaves there of its extent, a wait without its copy, a copy without its count: it has no event, so
then the stream is over when the copy stream is empty.

A stream that begins ahead of its job enqueues as many extents as plans have others wait for, two,
or one while the stream before it is not over, and for each the copy alone: only when the CPU has
seen that its slot is free, so that nothing ever stands in the copy stream for a client that runs,
and a cancelled one is over with the copies under way. It leaves the link to loads. With its job,
the count is enqueued after each copy of what is about to arrive.
Where it may, the stream of a job begins the one ahead itself, as its *follower*, so that the link
does not stand still until the event loop has heard of the end; towards it the runner's thread looks
often. If there is room it begins when the last two extents of the job are under way, or, after a
job that may give the device away, the last one.
Towards the event loop, which has the interpreter to itself from a job's end to the next one's grant
(`hold`), it does not look at all: what is under way suffices for that long.

So that the link goes on, an extent whose slot is not free yet is passed over for a later one whose
slot is, which then lies there *early*. Once the link has stood still that would only keep the first
ones waiting. With the job, early extents are published only after the copies of those before them,
which come later in the same copy stream; what is said to be in place does not include them.

Invariants: nothing is enqueued after `finished`, or after a failure; nothing that was enqueued is
left at `finished`, if the process goes on; a buffer or a place is given back only when its copy has
ended.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tierline_agent.concurrency import note_fault
from tierline_agent.devices.base import Ahead, StreamOrder
from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.copies import Copy, CopyLane
from tierline_agent.devices.cuda.driver import DeviceLost
from tierline_agent.devices.cuda.memory import CudaExtent
from tierline_agent.devices.cuda.pinned import Buffer, PinnedMedia
from tierline_agent.devices.cuda.words import CudaWords
from tierline_agent.devices.host_stream import explain
from tierline_agent.errors import LinkClosed, StreamFailed
from tierline_agent.links.link import Link, Transfer
from tierline_agent.policy.prefetch import freed_by, reach
from tierline_agent.policy.transfers import IN_FLIGHT, consumed_needed, slot_of
from tierline_agent.tiers import TierError
from tierline_agent.tiers.sources import Lender

_LOOK_S = 0.001
_LOOK_WHILE_ENDING_S = 0.0001
_LOOK_TOWARDS_END_S = 0.0001
_LOOK_AT_FEW_S = 0.0002
_LOOK_AHEAD_S = 0.0002
_LAST = 2
"""How many extents before the end the runner looks most often."""
_TIMED_EACH = 8
"""One in so many of a link's copies in a stream is timed, from the first one on."""
_VERIFIED_AHEAD = 2 * IN_FLIGHT
_AT_ONCE = 2
_HOLD_S = 0.0005
"""Longest time that the event loop takes to work with the end of a job and the begin of another."""


@dataclass(frozen=True)
class Supplies:
    """The supplies of a device's streams, which use them one after another."""

    context: Context
    lane: CopyLane
    media: PinnedMedia
    buffers: list[Buffer]
    """Idle buffers."""
    on_lost: Callable[[DeviceLost], None]
    """Told, in the runner's thread, that the device's context is gone."""
    loads: Callable[[], int]
    """How many copies outside streams are wanted or under way."""
    begin: Callable[[CudaStream], None]
    """Makes it the device's stream, begins it and has it run, after the one that runs. For any
    thread."""


@dataclass(frozen=True, eq=False)
class _InFlight:
    """An extent that was enqueued."""

    number: int
    copy: Copy
    size_bytes: int
    asked_s: float
    buffer: Buffer | None


@dataclass(eq=False)
class _Prepared:
    """An extent that is being read, or verified, ahead of its turn."""

    asked_s: float
    buffer: Buffer | None
    transfer: Transfer | None = None
    size_bytes: int | None = None
    """Set when it is ready."""


class CudaStream:
    """The streamed extents of one job."""

    def __init__(
        self,
        supplies: Supplies,
        order: StreamOrder,
        ring: list[CudaExtent],
        words: CudaWords,
        depth: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.words = words
        self.streamed_bytes = 0
        self.follower: CudaStream | None = None
        self._supplies = supplies
        self._order = order
        self._ring = ring
        self._depth = depth
        self._loop = loop
        self.finished: asyncio.Future[None] = loop.create_future()
        self._changed = threading.Condition()
        self._ahead = order.ahead
        self._next = self._looked = order.published
        """The first extent that was not enqueued."""
        self._consumed_then = words.consumed if order.on_demand else None
        """The client's word, as long as nothing is enqueued that has to wait for it."""
        self._early: set[int] = set()
        """Those that were before their turn."""
        self._stood_still = False
        """Nothing was under way at the last look."""
        self._flight: deque[_InFlight] = deque()
        self._left_over = False
        """A call was refused, and what was enqueued before it for the same end has no event."""
        self._torn: tuple[int, Buffer | None] | None = None
        """The extent, and its buffer, that what is left over may copy from."""
        self._prepared: dict[int, _Prepared] = {}
        self._copies: dict[Link, int] = {}
        """How many each link has made."""
        self._is_first = False
        """The streams before it are over."""
        self._held_until_s = 0.0
        """Until when the runner leaves the interpreter to the event loop."""
        self._stays = False
        self._cancelled = False
        self._resumable = False
        self._failure: StreamFailed | None = None
        self._over = False

    # -- for the event loop's thread

    def begin(self) -> None:
        """Enqueue the first extents now: waking the runner takes as long as copying a small one.

        A follower's is called by the stream before it, in any thread.
        """
        with self._changed:
            depth, self._depth = self._depth, min(self._depth, _AT_ONCE)
            try:
                self._advance()
            finally:
                self._depth = depth

    def cancel(self, *, resumable: bool = False) -> None:
        """Stop: enqueue nothing more, and let what is enqueued run out."""
        self._held_until_s = 0.0
        with self._changed:
            if self._cancelled or self._over:
                return
            if self._is_all_enqueued and not resumable and not self._advance():
                return  # as a rule all has arrived when a job ends, and that was not seen yet
            self._cancelled, self._resumable = True, resumable
            for number, prepared in list(self._prepared.items()):
                link = self._order.sources[number].link
                if prepared.transfer is not None and link.cancel(prepared.transfer):
                    self._forget(number)
            if not resumable:
                self._let_go()
                self._advance()
            self._changed.notify()

    def hold(self) -> None:
        """Leave the interpreter to the event loop, until another call and for a bounded time.

        Without the lock: to wait for the runner is what this avoids.
        """
        self._held_until_s = time.monotonic() + _HOLD_S

    def ring_is_free(self) -> None:
        """All slots may be used: the job before is over."""
        self._held_until_s = 0.0
        with self._changed:
            if self._ahead is not None:
                self._ahead = Ahead.BETWEEN_JOBS
                self._advance()
                self._changed.notify()

    def go(self, order: StreamOrder) -> bool:
        """Become the stream of a job."""
        self._held_until_s = 0.0
        with self._changed:
            if self._ahead is None or self._cancelled or self._failure or self._over:
                return False
            self._ahead, self._order = None, order
            self._publish_all()
            for number, prepared in list(self._prepared.items()):  # to queue by its deadline
                link = order.sources[number].link
                if prepared.transfer is not None and link.cancel(prepared.transfer):
                    self._forget(number)
                    self._looked = number
        self.begin()
        with self._changed:
            self._changed.notify()
        return True

    def stay(self) -> None:
        """Begin no follower from now on."""
        with self._changed:
            self._stays = True

    @property
    def without_job(self) -> bool:
        """Whether its job was not granted yet."""
        with self._changed:
            return self._ahead is not None

    @property
    def in_place(self) -> int:
        """Streamed extents that have arrived."""
        with self._changed:
            return self._in_place_before(self._flight)

    def _in_place_before(self, missing: Iterable[_InFlight]) -> int:
        """Extents that have arrived, without a gap, when of those enqueued these have not."""
        return min([self._next, *(one.number for one in missing)])

    @property
    def over(self) -> bool:
        """Whether nothing of it is enqueued any more."""
        with self._changed:
            return self._over

    def waits_for_client(self) -> bool:
        """Whether it leaves the link to others: the client has not consumed the next slot yet."""
        with self._changed:
            if self._over or not self._flight:
                return True
            if self._ahead is not None:
                return False
            first = self._flight[0].number
            needed = consumed_needed(first, len(self._ring))
            return needed > 0 and not self._has_consumed(needed)

    # -- the runner's thread

    def run(self) -> None:
        """Keep the device supplied until all has arrived."""
        with self._changed:
            self._is_first = True
            while (held_s := self._held_until_s - time.monotonic()) > 0 or self._advance():
                self._changed.wait(held_s if held_s > 0 else self._pause_s())

    def _pause_s(self) -> float | None:
        """How long to wait until the next look; None: until something changes."""
        if self._cancelled:
            return _LOOK_WHILE_ENDING_S
        if self._ahead is None:
            # Seen once a millisecond, the last one could be over before the next stream is begun.
            if self._is_ending:
                return _LOOK_TOWARDS_END_S if len(self._flight) <= _LAST else _LOOK_AT_FEW_S
            return _LOOK_AT_FEW_S if self._order.yields else _LOOK_S
        if self._flight:
            return _LOOK_TOWARDS_END_S if len(self._flight) == 1 else _LOOK_AHEAD_S
        if self._reading or self._next >= self._reach:
            return None
        after = self._ahead is Ahead.AFTER_A_JOB
        return _LOOK_AHEAD_S if after else _LOOK_S  # then loads have the link

    @property
    def _is_ending(self) -> bool:
        """Whether a stream may begin after it, and its last extents wait for nobody."""
        if not (self._flight and self._is_all_enqueued) or self._order.following is None:
            return False
        return self._has_consumed(consumed_needed(self._flight[0].number, len(self._ring)))

    @property
    def _has_room_ahead(self) -> bool:
        """Whether a follower could copy something now."""
        return any(map(self._slot_is_free, range(self._reach))) and not self._supplies.loads()

    def _advance(self) -> bool:
        """Take what has ended and enqueue what may be; False when it is over. Locked."""
        if self._over:
            return False
        try:
            self._supplies.context.enter()
            self._take_ended()
            if not (self._cancelled or self._failure):
                self._prepare()
                self._enqueue()
                self._enqueue_early()
                self._stood_still = not self._flight
                # Of one that yields, others wait for what is under way: two extents in all.
                last = 1 if self._order.yields else _LAST
                if self._is_ending and len(self._flight) <= last and self._has_room_ahead:
                    self._begin_follower()
        except DeviceLost as error:
            self._lose(error)
        except OSError as error:
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))
        except Exception as error:  # it ends this stream, and neither the thread nor the device
            note_fault("streams")
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))
        if self._cancelled and self._resumable:
            self._over = True  # the process ends; what is enqueued ends with it
        elif self._has_run_out and not self._reading and self._has_nothing_to_do:
            self._end()
        elif self._cancelled:
            self._let_go()
        return not self._over

    def _let_go(self) -> None:
        """End the waits for the client of a job that is over."""
        if self._ahead is None:
            self.words.interrupt()

    @property
    def _has_run_out(self) -> bool:
        """Whether nothing that was enqueued is left."""
        return not (self._flight or self._left_over)

    @property
    def _reading(self) -> bool:
        return any(prepared.size_bytes is None for prepared in self._prepared.values())

    @property
    def _has_nothing_to_do(self) -> bool:
        ended = self._cancelled or self._failure is not None
        return ended or self._is_all_enqueued

    @property
    def _is_all_enqueued(self) -> bool:
        return self._ahead is None and self._next == len(self._order.sources)

    def _take_ended(self) -> None:
        lane, order = self._supplies.lane, self._order
        while self._flight and lane.is_done(self._flight[0].copy):
            ended = self._flight.popleft()
            self._give_back(ended.number, ended.buffer)
            duration_ns = lane.take(ended.copy)
            source = order.sources[ended.number]
            self.streamed_bytes += ended.size_bytes
            if ended.buffer is None:
                source.link.account(ended.size_bytes, duration_ns)
            if order.on_placed is not None:
                order.on_placed(ended.size_bytes, time.monotonic() - ended.asked_s)
        if self._left_over and not self._flight and lane.is_idle():
            self._clear_left_over()

    def _clear_left_over(self) -> None:
        """What a refused call left in the copy stream is there no more."""
        self._left_over = False
        if self._torn is not None:
            torn, self._torn = self._torn, None
            self._give_back(*torn)

    def _give_back(self, number: int, buffer: Buffer | None) -> None:
        """The bytes of an extent are not copied from any more."""
        lender = self._order.sources[number].lender
        if buffer is not None:
            self._supplies.buffers.append(buffer)
        elif lender is not None:
            lender.take_back()

    # -- ahead of their turn

    def _prepare(self) -> None:
        """Look at each extent once, some way ahead: have it read or verified if need be; locked."""
        while self._looked < self._last_to_look_at():
            source = self._order.sources[self._looked]
            if source.lender is None:
                if not self._supplies.buffers:
                    return
                buffer = self._supplies.buffers.pop()
                self._submit(self._looked, functools.partial(source.measured, buffer.view), buffer)
            elif not _is_ready(source.lender):
                if len(self._prepared) >= _VERIFIED_AHEAD:
                    return
                self._submit(self._looked, source.lender.verify, None)
            self._looked += 1

    def _last_to_look_at(self) -> int:
        if self._ahead is None:
            last = min(self._next + self._depth, len(self._order.sources))
            if self._consumed_then is None or self._consumed_then != self.words.consumed:
                self._consumed_then = None
                return last
            return min(last, self._consumed_then + len(self._ring))
        may = self._next < self._reach and self._slot_is_free(self._next)
        return self._next + (may and self._has_the_link())

    def _has_the_link(self) -> bool:
        """Whether an extent may be on its way: without a job few at a time, and after loads."""
        if self._ahead is None:
            return True
        most = IN_FLIGHT if self._is_first else 1
        return len(self._flight) < most and not self._supplies.loads()

    @property
    def _reach(self) -> int:
        return reach(len(self._order.sources), len(self._ring))

    def _slot_is_free(self, number: int) -> bool:
        """Whether a job that runs has done with all that lies where this one belongs."""
        if self._ahead is Ahead.BETWEEN_JOBS:
            return True
        return self._has_consumed(freed_by(number, len(self._order.sources), len(self._ring)))

    def _has_consumed(self, count: int) -> bool:
        """Whether the client has consumed so many, as the device compares the words."""
        return (self.words.consumed - count) & 0x80000000 == 0

    def _submit(self, number: int, work: Callable[[], int], buffer: Buffer | None) -> None:
        source = self._order.sources[number]
        prepared = self._prepared[number] = _Prepared(time.monotonic(), buffer)

        def done(moved: int, failure: BaseException | None) -> None:
            self._was_prepared(number, moved, failure)

        try:
            prepared.transfer = source.link.submit(
                self._order.deadline_ns, work, done, device=source.device
            )
        except LinkClosed as error:
            self._forget(number)
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))

    def _was_prepared(self, number: int, moved: int, failure: BaseException | None) -> None:
        with self._changed:
            prepared = self._prepared[number]
            prepared.size_bytes = moved
            if prepared.buffer is None or failure is not None or self._cancelled or self._failure:
                self._forget(number)
            if failure is not None:
                self._fail(explain(self._order.sources[number], failure))
            self._changed.notify()

    def _forget(self, number: int) -> None:
        buffer = self._prepared.pop(number).buffer
        if buffer is not None:
            self._supplies.buffers.append(buffer)

    # -- in their turn

    def _enqueue(self) -> None:
        while self._next < self._looked and len(self._flight) < self._depth and not self._failure:
            ready = self._take_ready(self._next) if self._has_the_link() else None
            if ready is None:
                return
            self._enqueue_one(self._next, *ready)
            self._next = self._followed_to(self._next)
            self._looked = max(self._looked, self._next)

    def _enqueue_early(self) -> None:
        """Without a job, where the next one has to wait for its slot: a later one that has not."""
        waits = self._ahead is not None and self._next < self._reach
        if not waits or self._stood_still or not self._has_the_link():
            return
        if self._slot_is_free(self._next):  # it is being read, or verified
            return
        for number in range(self._next + 1, self._reach):
            lender = self._order.sources[number].lender
            if number in self._early or lender is None or not self._slot_is_free(number):
                continue
            ready = self._take_ready(number) if _is_ready(lender) else None
            if ready is not None:
                self._enqueue_one(number, *ready)
                self._early.add(number)
            return

    def _followed_to(self, number: int) -> int:
        """The first extent after this one that was not enqueued early."""
        number += 1
        while number in self._early:
            number += 1
        return number

    def _take_ready(self, number: int) -> tuple[int, int, float, Buffer | None] | None:
        """An extent's address and bytes, since when it was asked for, its buffer; None: not yet."""
        prepared = self._prepared.get(number)
        if prepared is not None:
            if prepared.size_bytes is None or prepared.buffer is None:
                return None
            del self._prepared[number]
            buffer = prepared.buffer
            return buffer.address, prepared.size_bytes, prepared.asked_s, buffer
        source = self._order.sources[number]
        if source.lender is None:  # what was read was given up: the stream fails
            return None
        try:
            place = source.lender.lend()
        except TierError as error:
            self._fail(explain(source, error))
            return None
        return self._supplies.media.address_of(place), place.length, time.monotonic(), None

    def _enqueue_one(
        self, number: int, address: int, size_bytes: int, asked_s: float, buffer: Buffer | None
    ) -> None:
        try:
            self._copy(number, address, size_bytes, asked_s, buffer)
        except BaseException:
            self._left_over, self._torn = True, (number, buffer)
            raise

    def _copy(
        self, number: int, address: int, size_bytes: int, asked_s: float, buffer: Buffer | None
    ) -> None:
        lane, slots = self._supplies.lane, len(self._ring)
        needed = consumed_needed(number, slots)
        if needed > 0:
            lane.wait(self.words.consumed_address, needed)
        count = self._followed_to(number)
        publish = (self.words.published_address, count) if self._ahead is None else None
        target = self._ring[slot_of(number, slots)].address
        timed = buffer is None and self._times(self._order.sources[number].link)
        copy = lane.copy(target, address, size_bytes, publish=publish, timed=timed)
        self._flight.append(_InFlight(number, copy, size_bytes, asked_s, buffer))

    def _times(self, link: Link) -> bool:
        """Whether the next copy of a link is timed."""
        before = self._copies.get(link, 0)
        self._copies[link] = before + 1
        return self._order.measures or before % _TIMED_EACH == 0

    def _publish_all(self) -> None:
        """Publish what was copied without a job, and what is under way as it arrives."""
        published = self._order.published
        if self.in_place > published:
            published = self.in_place
            self.words.publish(published)
        under_way = list(self._flight)
        try:
            self._supplies.context.enter()
            for place, one in enumerate(under_way):
                count = self._in_place_before(under_way[place + 1 :])
                if count > published:
                    published = count
                    self._supplies.lane.publish(one.copy, self.words.published_address, count)
        except DeviceLost as error:
            self._lose(error)
        except OSError as error:
            self._left_over = True
            self._fail(StreamFailed(f"cannot stream: {error}", corrupt=False))

    # -- the end

    def _fail(self, failure: StreamFailed) -> None:
        if self._failure is None and not self._cancelled:
            self._failure = failure

    def _lose(self, error: DeviceLost) -> None:
        """The context is gone, and with it all that was enqueued."""
        self._next = self.in_place
        while self._flight:
            ended = self._flight.popleft()
            self._give_back(ended.number, ended.buffer)
        self._clear_left_over()
        failure = StreamFailed(f"cannot stream: {error}", corrupt=False)
        failure.__cause__ = error
        self._fail(failure)
        self._supplies.on_lost(error)

    def _end(self) -> None:
        self._over = True
        for number in list(self._prepared):
            self._forget(number)
        if not (self._cancelled or self._failure):
            self._begin_follower()
        self._loop.call_soon_threadsafe(self._finish)

    def _begin_follower(self) -> None:
        """Begin it, if it may be."""
        following = self._order.following
        if following is None or self._stays or self.follower is not None:
            return
        self.follower = CudaStream(
            self._supplies, following, self._ring, self.words, self._depth, self._loop
        )
        self._supplies.begin(self.follower)

    def _finish(self) -> None:
        if self._failure is not None and not self._cancelled:
            self._order.on_failure(self, self._failure)
        self.finished.set_result(None)
        self._order.on_finished(self)


def _is_ready(lender: Lender) -> bool:
    """Whether content can be copied as it lies; what is wrong with it is found in its turn."""
    try:
        return lender.ready()
    except TierError:
        return True
