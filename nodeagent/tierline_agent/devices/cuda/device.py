"""A GPU as a device: it joins memory, words, streams and loads; `base` says what each means.

Invariant: one stream runs at a time, in the runner's thread; everything else of the copy engine is
the loader's.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable

from tierline_agent.devices.base import Extent, StreamOrder
from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.copies import CopyLane
from tierline_agent.devices.cuda.driver import DeviceLost
from tierline_agent.devices.cuda.inventory import Gpu
from tierline_agent.devices.cuda.kept import KeptCalls
from tierline_agent.devices.cuda.loads import Loader
from tierline_agent.devices.cuda.memory import CudaExtent, DeviceMemory
from tierline_agent.devices.cuda.pinned import Buffer, PinnedMedia, make_buffers
from tierline_agent.devices.cuda.stream import CudaStream, Supplies
from tierline_agent.devices.cuda.words import CudaWords
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.devices.staging import HostStaging
from tierline_agent.policy.transfers import IN_FLIGHT
from tierline_agent.sources import Source
from tierline_agent.streaming import StreamRunner
from tierline_agent.tiers import MappedMedium

CONTROL_BYTES = mmap.PAGESIZE
_AHEAD_S = 0.008  # copying that is enqueued ahead: many times the interpreter's switch interval
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
_ASSUMED_BYTES_PER_S = 50e9  # until the link was measured: more would only be enqueued deeper
_STREAM_BUFFERS = 2 * IN_FLIGHT


class CudaDevice:
    """One GPU."""

    kind = "cuda"
    copies_itself = True

    def __init__(self, gpu: Gpu, extent_bytes: int, fast_bytes: int) -> None:
        """Raises CudaFailed, OSError: it cannot be used."""
        self.extent_bytes = extent_bytes
        self.fast_bytes = fast_bytes
        self.product = gpu.product
        self.uuid = gpu.uuid
        self.memory_bytes = gpu.memory_bytes
        self.lost = False
        self._kept = KeptCalls()
        self._context = Context(gpu.ordinal, self._kept)
        self._context.enter()
        self._memory = DeviceMemory(self._context, extent_bytes, fast_bytes // extent_bytes)
        self._media = PinnedMedia(self._context)
        self._stream: CudaStream | None = None
        self._runner = StreamRunner(f"gpu{gpu.ordinal}")
        buffers = make_buffers(self._context, _STREAM_BUFFERS + IN_FLIGHT, extent_bytes)
        self._loader = Loader(self._context, buffers[_STREAM_BUFFERS:], self._link_is_free)
        self._supplies = Supplies(
            self._context,
            CopyLane(self._context, self._kept),
            self._media,
            buffers[:_STREAM_BUFFERS],
            self._lost,
        )

    # -- extents

    def create_extent(self) -> Extent:
        """Make an extent of zeros."""
        return self._memory.create()

    def adopt_extent(self, descriptor: int) -> Extent:
        """The extent that a descriptor leads to, or offered memory."""
        return self._memory.adopt(descriptor)

    def destroy_extent(self, extent: Extent) -> None:
        """Unmap and close it."""
        self._memory.destroy(_extent(extent))

    def export_extent(self, extent: Extent) -> int:
        """Return a descriptor; the client maps it with whatever access it asks for."""
        return self._memory.export(_extent(extent))

    # -- bytes

    def attach_media(self, media: Iterable[MappedMedium]) -> None:
        """Map and pin them."""
        for medium in media:
            self._media.add(medium)

    def fill(self, extent: Extent, read: Callable[[memoryview], int]) -> int:
        """Let `read` write into a pinned buffer, and copy that."""
        with self._loader.buffer() as buffer:
            return self._copy_buffer(_extent(extent), buffer, read)

    def load(self, extent: Extent, source: Source) -> int:
        """Copy from where the source's bytes lie, or through a buffer, and count it."""
        target = _extent(extent)
        if source.lender is None:
            with self._loader.buffer() as buffer:
                moved = source.link.measure(lambda: source.read(buffer.view))
                self._loader.copy(target.address, buffer.address, moved)
                return moved
        place = source.lender.lend()
        try:
            address = self._media.address_of(place)
            duration_ns = self._loader.copy(target.address, address, place.length)
        finally:
            source.lender.take_back()
        source.link.account(place.length, duration_ns)
        return place.length

    def _copy_buffer(
        self, extent: CudaExtent, buffer: Buffer, read: Callable[[memoryview], int]
    ) -> int:
        moved = read(buffer.view)
        if moved:
            self._loader.copy(extent.address, buffer.address, moved)
        return moved

    # -- jobs

    def create_words(self) -> CudaWords:
        """Make a control page."""
        return CudaWords(SharedMemory.create("tierline-control", CONTROL_BYTES), self._context)

    def adopt_words(self, descriptor: int) -> CudaWords:
        """Take back a control page."""
        memory = SharedMemory.adopt(descriptor, CONTROL_BYTES, "a control page")
        return CudaWords(memory, self._context)

    def create_staging(self, slots: int) -> HostStaging:
        """Make staging memory of `slots` extents, in host memory."""
        return HostStaging.create(slots, self.extent_bytes)

    def open_stream(self, order: StreamOrder) -> CudaStream:
        """Begin to stream."""
        words = order.words
        if not isinstance(words, CudaWords):
            raise TypeError(f"{words!r} are not flag words of a GPU")
        ring = [_extent(extent) for extent in order.ring]
        self._stream = CudaStream(self._supplies, order, ring, words, self._depth(order))
        self._runner.start(self._stream)
        return self._stream

    def close(self) -> None:
        """End the runner."""
        self._runner.close()

    def _depth(self, order: StreamOrder) -> int:
        """Extents to keep enqueued, from the fastest link that the stream has."""
        rates = [rate for source in order.sources if (rate := source.link.rate()) is not None]
        fastest = max((rate.bandwidth_bytes_per_s for rate in rates), default=_ASSUMED_BYTES_PER_S)
        ahead = math.ceil(_AHEAD_S * fastest / self.extent_bytes)
        return min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD)

    def _link_is_free(self) -> bool:
        stream = self._stream
        return stream is None or stream.waits_for_client()

    def _lost(self, error: DeviceLost) -> None:
        """Nothing yet is done for a lost device but to end its streams."""


def _extent(extent: Extent) -> CudaExtent:
    if not isinstance(extent, CudaExtent):
        raise TypeError(f"{extent!r} is not an extent of a GPU")
    return extent
