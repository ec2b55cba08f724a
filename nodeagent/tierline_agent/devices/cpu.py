"""The host as a device: extents are memfds, and a link reads straight into them.

There is no copy but the tier's own: `fill` hands the extent's mapping to the read. Huge pages
come with the first full content, in the thread of the link that brings it: collapsing takes some
milliseconds, which the event loop does not have.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tierline_agent.devices.backup import BackupMemory, HostBackup
from tierline_agent.devices.base import Extent, StreamOrder
from tierline_agent.devices.host_stream import Stream, StreamRunner
from tierline_agent.devices.memfd import SharedMemory
from tierline_agent.devices.staging import HostStaging
from tierline_agent.tiers import MappedMedium
from tierline_agent.tiers.sources import Source
from tierline_agent.transport.protocol import YIELD_BIT
from tierline_client import words
from tierline_client.library import load as load_library

CONTROL_BYTES = mmap.PAGESIZE
_PUBLISHED_OFFSET = 0
_CONSUMED_OFFSET = 64
_ALL = 0xFFFFFFFF


class CpuWords:
    """The flag words in a control page that agent and client map both.

    The top bit of `published` asks the client to give the device away: in one word with the count,
    so that a client that sleeps until the count changes cannot miss it. Link workers publish while
    the event loop asks.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._address = memory.address()
        self._published = ctypes.c_uint32.from_address(self._address + _PUBLISHED_OFFSET)
        self._consumed = ctypes.c_uint32.from_address(self._address + _CONSUMED_OFFSET)
        self._interrupted = False
        self._lock = threading.Lock()
        self._count = self.published
        self._asked = 0

    @property
    def published(self) -> int:
        """Streamed extents in place, as the page says."""
        return int(self._published.value) & ~YIELD_BIT

    @property
    def consumed(self) -> int:
        """Streamed extents that the client says it is done with."""
        return self._consumed.value

    def reset(self, published: int = 0) -> None:
        """Set both words before a job."""
        self.restart(published, 0)

    def restart(self, published: int, consumed: int) -> None:
        """Set both words, before a job goes on, and ask for nothing."""
        with self._lock:
            self._interrupted = False
            self._count, self._asked = published, 0
            self._published.value = published
            self._consumed.value = consumed

    def ask(self) -> None:
        """Ask the client to give the device away at its next gate, and wake it if it waits."""
        with self._lock:
            self._asked = YIELD_BIT
            words.publish(self._address + _PUBLISHED_OFFSET, self._count | self._asked)

    def ask_no_more(self) -> None:
        """Withdraw that."""
        with self._lock:
            self._asked = 0
            words.publish(self._address + _PUBLISHED_OFFSET, self._count)

    def publish(self, count: int) -> None:
        """Store `count` with release order and wake the client."""
        with self._lock:
            self._count = count
            words.publish(self._address + _PUBLISHED_OFFSET, count | self._asked)

    def wait_consumed(self, at_least: int, timeout_s: float) -> bool:
        """Sleep until the client consumed so many; False after `timeout_s` or when interrupted."""
        reached = words.wait(self._address + _CONSUMED_OFFSET, at_least, timeout_s)
        return reached and not self._interrupted

    def interrupt(self) -> None:
        """End every wait. It overwrites the client's word, which nobody reads any more."""
        self._interrupted = True
        words.publish(self._address + _CONSUMED_OFFSET, _ALL)

    def export(self) -> int:
        """Return a writable descriptor of the page."""
        return self._memory.export(writable=True)

    def close(self) -> None:
        """Unmap the page."""
        self._memory.close()


class CpuDevice:
    """The processor and a budget of its memory."""

    kind = "cpu"
    uuid = ""
    makes_at_once = True
    copies_itself = False
    lost = False
    context_bytes = 0

    def __init__(self, extent_bytes: int, fast_bytes: int) -> None:
        self.on_lost: Callable[[str], None] | None = None
        load_library()  # now, if it is missing, rather than at the first job
        self.extent_bytes = extent_bytes
        self.fast_bytes = fast_bytes
        self.product = processor_name()
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._runner: StreamRunner | None = None

    def check(self) -> None:
        """The host is never lost."""

    def recover(self) -> None:
        """The host is never lost."""

    def give_back(self) -> None:
        """There is nothing to give back."""

    def create_extent(self) -> Extent:
        """Make an extent of zeros; its pages come as they are first written."""
        return SharedMemory.create("tierline-extent", self.extent_bytes)

    def adopt_extent(self, descriptor: int) -> Extent:
        """Take back an extent from a client's read-only descriptor."""
        return SharedMemory.adopt(descriptor, self.extent_bytes, "an extent", to_read=True)

    def destroy_extent(self, extent: Extent) -> None:
        """Unmap and close it."""
        _memory(extent).close()

    def export_extent(self, extent: Extent, *, writable: bool = False, sealed: bool = False) -> int:
        """Return a descriptor."""
        return _memory(extent).export(writable=writable, sealed=sealed)

    def fill(self, extent: Extent, read: Callable[[memoryview], int]) -> int:
        """Let `read` write into the extent itself; the first time, put huge pages under it."""
        memory = _memory(extent)
        memory.touch()
        moved = read(memory.view)
        if moved == self.extent_bytes:
            memory.use_huge_pages()
        return moved

    def load(self, extent: Extent, source: Source) -> int:
        """Let the source be read into the extent itself."""
        return self.fill(extent, source.measured)

    def attach_media(self, media: Mapping[MappedMedium, int]) -> None:
        """Nothing: links read from every medium."""

    def open_stream(self, order: StreamOrder) -> Stream:
        """Begin to stream, in the device's one stream thread."""
        if self._runner is None:
            self._runner = StreamRunner(self.kind)
        stream = Stream(
            device=self,
            sources=order.sources,
            ring=order.ring,
            words=_words(order.words),
            deadline_ns=order.deadline_ns,
            published=order.published,
            on_finished=order.on_finished,
            on_failure=order.on_failure,
            on_placed=order.on_placed,
            ahead=order.ahead,
        )
        self._runner.start(stream)
        return stream

    def close(self) -> None:
        """End the stream thread."""
        if self._runner is not None:
            self._runner.close()

    def create_words(self) -> CpuWords:
        """Make a control page."""
        return CpuWords(SharedMemory.create("tierline-control", CONTROL_BYTES))

    def adopt_words(self, descriptor: int) -> CpuWords:
        """Take back a control page."""
        return CpuWords(SharedMemory.adopt(descriptor, CONTROL_BYTES, "a control page"))

    def create_staging(self, slots: int) -> HostStaging:
        """Make staging memory of `slots` extents."""
        return HostStaging.create(slots, self.extent_bytes)

    def create_backup(self, extents: int) -> HostBackup:
        """Make room for a copy of so many extents."""
        return HostBackup(BackupMemory.create(extents, self.extent_bytes), self.extent_bytes)

    def adopt_backup(self, descriptor: int, extents: int) -> HostBackup:
        """Take back a backup."""
        memory = BackupMemory.adopt(descriptor, extents, self.extent_bytes)
        return HostBackup(memory, self.extent_bytes)


def _memory(extent: Extent) -> SharedMemory:
    if not isinstance(extent, SharedMemory):
        raise TypeError(f"{extent!r} is not an extent of the host")
    return extent


def _words(words_of_job: object) -> CpuWords:
    if not isinstance(words_of_job, CpuWords):
        raise TypeError(f"{words_of_job!r} are not flag words of the host")
    return words_of_job


def processor_name() -> str:
    """The processor's name as the kernel reports it, `cpu` where it reports none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "cpu"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")
