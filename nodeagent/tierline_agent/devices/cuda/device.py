"""A GPU as a device: it joins memory, words, streams and loads; `base` says what each means.

All that lives in the device's context is one `_Parts`. A lost context takes all of it away: the
loss is told once, every call fails until then, and `recover` makes new parts in a new context.

Invariant: one stream runs at a time, in the runner's thread; everything else of the copy engine is
the loader's.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tierline_agent.devices.backup import BackupMemory
from tierline_agent.devices.base import Extent, StreamOrder
from tierline_agent.devices.cuda.backup import CudaBackup
from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.copies import CopyLane
from tierline_agent.devices.cuda.driver import DeviceLost
from tierline_agent.devices.cuda.inventory import Gpu, used_bytes
from tierline_agent.devices.cuda.kept import KeptCalls
from tierline_agent.devices.cuda.loads import Loader
from tierline_agent.devices.cuda.memory import CudaExtent, DeviceMemory
from tierline_agent.devices.cuda.pinned import Buffers, PinnedMedia
from tierline_agent.devices.cuda.stream import CudaStream, Supplies
from tierline_agent.devices.cuda.words import CudaWords
from tierline_agent.devices.host_stream import StreamRunner
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.devices.staging import HostStaging
from tierline_agent.policy.transfers import IN_FLIGHT
from tierline_agent.tiers import MappedMedium
from tierline_agent.tiers.sources import Source

CONTROL_BYTES = mmap.PAGESIZE
_AHEAD_S = 0.008  # copying that is enqueued ahead: many times the interpreter's switch interval
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
_ASSUMED_BYTES_PER_S = 50e9  # until the link was measured: more would only be enqueued deeper
_STREAM_BUFFERS = 2 * IN_FLIGHT


@dataclass(frozen=True)
class _Parts:
    """The objects that live in one context."""

    memory: DeviceMemory
    loader: Loader
    supplies: Supplies


class CudaDevice:
    """One GPU."""

    kind = "cuda"
    makes_at_once = False
    copies_itself = True

    def __init__(
        self, gpu: Gpu, extent_bytes: int, fast_bytes: int, context_bytes: int | None = None
    ) -> None:
        """`context_bytes` is what a context costs, bytes; None: to be measured.

        It takes no memory but the context's. Raises CudaFailed, OSError: it cannot be used.
        """
        self.extent_bytes = extent_bytes
        self.fast_bytes = fast_bytes
        self.product = gpu.product
        self.uuid = gpu.uuid
        self.memory_bytes = gpu.memory_bytes
        self.lost = False
        self.on_lost: Callable[[str], None] | None = None
        self._losing = threading.Lock()
        self._kept = KeptCalls()
        before = used_bytes(gpu)
        self._context = Context(gpu.ordinal, self._kept)
        grown = _grown(before, used_bytes(gpu))
        self.context_bytes = grown if context_bytes is None else context_bytes
        self._stream: CudaStream | None = None
        self._closed: list[CudaWords | CudaBackup] = []
        try:
            self._media = PinnedMedia(self._context)
            self._buffers = Buffers(self._context, _STREAM_BUFFERS + IN_FLIGHT, extent_bytes)
            self._parts = self._make_parts()
        except BaseException:
            self._context.release()
            raise
        self._runner = StreamRunner(f"gpu{gpu.ordinal}")

    # -- its life

    def check(self) -> None:
        """Ask the driver whether the context still works."""
        if not self.lost:
            try:
                self._context.check()
            except DeviceLost as error:
                self._lose(error)

    def recover(self) -> None:
        """Make the context and pin everything again."""
        self._context.reset()
        self._context.enter()
        self._parts.memory.close()
        self._media.pin_again()
        self._buffers.pin()
        self._parts = self._make_parts()
        self.lost = False

    def close(self) -> None:
        """End the runner."""
        self._runner.close()

    def give_back(self) -> None:
        """End the runner, and the context with all that is in it."""
        self._media.give_up()
        self._runner.close()
        self._context.release()
        self._parts.memory.close()

    def _make_parts(self) -> _Parts:
        context, buffers = self._context, self._buffers.all
        context.enter()
        loader = Loader(context, buffers[_STREAM_BUFFERS:], self._link_is_free)
        return _Parts(
            DeviceMemory(context, self.extent_bytes, self.fast_bytes // self.extent_bytes),
            loader,
            Supplies(
                context,
                CopyLane(context, self._kept),
                self._media,
                buffers[:_STREAM_BUFFERS],
                self._lose,
                loader.wanted,
                self._begin,
            ),
        )

    @contextmanager
    def _working(self) -> Iterator[_Parts]:
        """The parts, for a call that notices if they are lost."""
        try:
            yield self._parts
        except DeviceLost as error:
            self._lose(error)
            raise

    def _lose(self, error: DeviceLost) -> None:
        with self._losing:
            first, self.lost = not self.lost, True
        if first and self.on_lost is not None:
            self.on_lost(str(error))

    # -- extents

    def create_extent(self) -> Extent:
        """Make an extent of zeros."""
        with self._working() as parts:
            return parts.memory.create()

    def adopt_extent(self, descriptor: int) -> Extent:
        """The extent that a descriptor leads to, or offered memory."""
        with self._working() as parts:
            return parts.memory.adopt(descriptor)

    def destroy_extent(self, extent: Extent) -> None:
        """Unmap and close it."""
        self._parts.memory.destroy(_extent(extent))

    def export_extent(
        self,
        extent: Extent,
        *,
        writable: bool = False,  # noqa: ARG002
        sealed: bool = False,  # noqa: ARG002
    ) -> int:
        """Return a descriptor; the client maps it with whatever access it asks for."""
        return self._parts.memory.export(_extent(extent))

    # -- bytes

    def attach_media(self, media: Mapping[MappedMedium, int]) -> None:
        """Map and pin them; what else was is let go."""
        self._media.attach(media)

    def fill(self, extent: Extent, read: Callable[[memoryview], int]) -> int:
        """Let `read` write into a pinned buffer, and copy that."""
        with self._working() as parts, parts.loader.buffer() as buffer:
            moved = read(buffer.view)
            if moved:
                parts.loader.copy(_extent(extent).address, buffer.address, moved)
            return moved

    def load(self, extent: Extent, source: Source) -> int:
        """Copy from where the source's bytes lie, or through a buffer, and count it."""
        if source.lender is None:
            return self.fill(extent, source.measured)
        with self._working() as parts:
            place = source.lender.lend()
            try:
                address = self._media.address_of(place)
                duration_ns = parts.loader.copy(_extent(extent).address, address, place.length)
            finally:
                source.lender.take_back()
        source.link.account(place.length, duration_ns)
        return place.length

    # -- jobs

    def create_words(self) -> CudaWords:
        """Make a control page."""
        memory = SharedMemory.create("tierline-control", CONTROL_BYTES)
        with self._working():
            return CudaWords(memory, self._context, self._closes)

    def adopt_words(self, descriptor: int) -> CudaWords:
        """Take back a control page."""
        memory = SharedMemory.adopt(descriptor, CONTROL_BYTES, "a control page")
        with self._working():
            return CudaWords(memory, self._context, self._closes)

    def create_staging(self, slots: int) -> HostStaging:
        """Make staging memory of `slots` extents, in host memory."""
        return HostStaging.create(slots, self.extent_bytes)

    def create_backup(self, extents: int) -> CudaBackup:
        """Make pinned room for a copy of so many extents."""
        memory = BackupMemory.create(extents, self.extent_bytes)
        with self._working():
            return CudaBackup(self._context, memory, self.extent_bytes, self._closes)

    def adopt_backup(self, descriptor: int, extents: int) -> CudaBackup:
        """Take back a backup, and pin it."""
        memory = BackupMemory.adopt(descriptor, extents, self.extent_bytes)
        with self._working():
            return CudaBackup(self._context, memory, self.extent_bytes, self._closes)

    def open_stream(self, order: StreamOrder) -> CudaStream:
        """Begin to stream."""
        words = order.words
        if not isinstance(words, CudaWords):
            raise TypeError(f"{words!r} are not flag words of a GPU")
        self._unpin_closed()
        ring = [_extent(extent) for extent in order.ring]
        loop = asyncio.get_running_loop()
        stream = CudaStream(self._parts.supplies, order, ring, words, self._depth(order), loop)
        self._begin(stream)
        return stream

    def _begin(self, stream: CudaStream) -> None:
        self._stream = stream
        stream.begin()
        self._runner.start(stream)

    def _closes(self, pinned: CudaWords | CudaBackup) -> None:
        self._closed.append(pinned)
        self._unpin_closed()

    def _unpin_closed(self) -> None:
        """Not while a stream may wait for its client: the event loop would wait with it."""
        if self._stream is None or self._stream.over or self._stream.without_job:
            while self._closed:
                self._closed.pop().unpin()

    def _depth(self, order: StreamOrder) -> int:
        """Extents to keep enqueued, from the fastest link that the stream has.

        What is enqueued cannot be taken back, and a job that displaces the stream waits for it.
        """
        if order.yields:
            return IN_FLIGHT
        links = {source.link for source in order.sources}
        rates = [rate for link in links if (rate := link.rate()) is not None]
        fastest = max((rate.bandwidth_bytes_per_s for rate in rates), default=_ASSUMED_BYTES_PER_S)
        ahead = math.ceil(_AHEAD_S * fastest / self.extent_bytes)
        return min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD)

    def _link_is_free(self) -> bool:
        stream = self._stream
        return stream is None or stream.waits_for_client()


def _grown(before: int | None, after: int | None) -> int:
    """The memory of this process's own context; others may come and go in between."""
    return max(0, after - before) if before is not None and after is not None else 0


def _extent(extent: Extent) -> CudaExtent:
    if not isinstance(extent, CudaExtent):
        raise TypeError(f"{extent!r} is not an extent of a GPU")
    return extent
