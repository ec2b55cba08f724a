"""A client of an agent with a GPU as device: the protocol by hand, CUDA by NVIDIA's bindings.

`GpuArena` is an arena as a client maps it: one address range, resident extents and ring slots at
their places, read-only. A job waits for each extent, copies it out and gives it back, all on one
stream and without the CPU in between.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from cuda.bindings import driver
from tests.integration.agent.raw_client import Lent, RawClient

from tierline_agent.transport import protocol as p

GEQ = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
CONSUMED_OFFSET = 64


def ok(answer: tuple[Any, ...]) -> Any:
    """The value of a call that succeeded."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def start_cuda(ordinal: int = 0) -> None:
    """Make the primary context of a device current."""
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(ordinal))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))


class GpuArena(Lent):
    """An arena in a GPU's address space; the context is current."""

    ordinal = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        residents = [self._import(descriptor) for descriptor in self.residents]
        ring = [self._import(descriptor) for descriptor in self.ring]
        size = len(self.placement) * self.extent_bytes
        self.base = int(ok(driver.cuMemAddressReserve(size, 0, 0, 0)))
        for extent, word in enumerate(self.placement):
            handle = residents[word - p.RESIDENT_BIT] if word & p.RESIDENT_BIT else ring[word]
            ok(
                driver.cuMemMap(
                    self.base + extent * self.extent_bytes, self.extent_bytes, 0, handle, 0
                )
            )
        self.allow(READ)
        self._words = mmap.mmap(self.control, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        ok(driver.cuMemHostRegister(address, mmap.PAGESIZE, 2))
        self.published_there = int(ok(driver.cuMemHostGetDevicePointer(address, 0)))
        self.consumed_there = self.published_there + CONSUMED_OFFSET
        self.stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.host = int(ok(driver.cuMemHostAlloc(size, 0)))

    def _import(self, descriptor: int) -> Any:
        return ok(driver.cuMemImportFromShareableHandle(descriptor, POSIX_FD))

    def allow(self, flags: Any) -> None:
        """Set the access of the whole range."""
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.ordinal
        access.flags = flags
        ok(driver.cuMemSetAccess(self.base, len(self.placement) * self.extent_bytes, [access], 1))

    @property
    def published(self) -> int:
        """The agent's word."""
        return int.from_bytes(self._words[:4], "little")

    @property
    def consumed(self) -> int:
        """This client's word."""
        return int.from_bytes(self._words[CONSUMED_OFFSET : CONSUMED_OFFSET + 4], "little")

    def enqueue(self, first: int, last: int) -> None:
        """Read extents first .. last-1 on the device's stream, as layers of one extent would."""
        streamed = sum(extent < first for extent in self.streamed)
        for extent in range(first, last):
            streams = not self.placement[extent] & p.RESIDENT_BIT
            at = extent * self.extent_bytes
            length = min(self.extent_bytes, self.size - at)
            streamed += streams
            if streams:
                ok(driver.cuStreamWaitValue32(self.stream, self.published_there, streamed, GEQ))
            ok(driver.cuMemcpyDtoHAsync(self.host + at, self.base + at, length, self.stream))
            if streams:
                ok(driver.cuStreamWriteValue32(self.stream, self.consumed_there, streamed, 0))

    def synchronise(self) -> None:
        """Wait for the stream."""
        ok(driver.cuStreamSynchronize(self.stream))

    def look(self, extent: int) -> bytes:
        """The bytes at an extent's address, whatever is there now."""
        at = extent * self.extent_bytes
        length = min(self.extent_bytes, self.size - at)
        ok(driver.cuMemcpyDtoHAsync(self.host + at, self.base + at, length, self.stream))
        self.synchronise()
        return self._host_bytes(at, length)

    def read_in_job(self, first: int = 0, last: int | None = None) -> bytes:
        """The bytes of extents first .. last-1, read as a job does."""
        last = len(self.placement) if last is None else last
        self.enqueue(first, last)
        self.synchronise()
        begin, end = first * self.extent_bytes, min(last * self.extent_bytes, self.size)
        return self._host_bytes(begin, end - begin)

    def _host_bytes(self, begin: int, size: int) -> bytes:
        # string_at takes less than 2 GiB.
        return bytes((ctypes.c_ubyte * size).from_address(self.host + begin))


class GpuClient(RawClient):
    """A connection of a process that uses a GPU."""

    device = p.Device.CUDA

    def load_arena(self, content: bytes, *, arena: int = 0) -> GpuArena:
        """Reserve, map, store and seal `content`; each extent is a layer."""
        loaded = GpuArena(*self.borrow(len(content), arena=arena))
        self.fill(loaded, content)
        return loaded
