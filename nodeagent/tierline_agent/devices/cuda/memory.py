"""Extents of device memory: made, mapped once, exported once; taken back by their open file.

One address range is reserved for all extents that the device can have; each is mapped into a slot
of it from `create` or `adopt` until `destroy`. Each is exported once, when it is made, and what
clients get are duplicates of that descriptor, so that it is always the same open file.

Identity after a restart. The kernel tells whether two descriptors are one open file, but not what
an earlier agent made. So an extent that a client offers and that this agent does not have is
*offered* memory: the pool lets it serve only the domain that offered it and destroys it when it is
given up. If it is not what the client says, the client has fooled only itself: what is streamed
into it is what the client may read anyway, and it counts against the same limits.

Invariant: new extents are zero before anybody else has them.
"""

from __future__ import annotations

import fcntl
import os
import threading
from typing import Any

from tierline_agent.devices.base import Identity
from tierline_agent.devices.cuda.context import Context
from tierline_agent.devices.cuda.driver import SUCCESS, CudaFailed, call, driver
from tierline_agent.devices.cuda.same_file import OpenFiles
from tierline_agent.errors import DescriptorRefused

_SPARE_SLOTS = 64  # the probe's targets, and adoptions that are refused
_EXPORT = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class CudaExtent:
    """One extent of device memory; a process that has a descriptor of it can write."""

    writable = True

    def __init__(
        self, serial: int, slot: int, address: int, handle: Any, descriptor: int, *, offered: bool
    ) -> None:
        self.identity = Identity(0, serial)
        self.slot = slot
        self.address = address
        self.handle = handle
        self.descriptor = descriptor
        self.offered = offered

    def fits(self, *, sealed: bool) -> bool:  # noqa: ARG002
        """Whether it can be lent again."""
        return not self.offered

    @property
    def mapped(self) -> bool:
        """Whether the agent still has it."""
        return self.descriptor >= 0


class DeviceMemory:
    """All extents of a device."""

    def __init__(self, context: Context, extent_bytes: int, most_extents: int) -> None:
        """Raises CudaFailed; ValueError if the device has no such extents."""
        self._context = context
        self._extent_bytes = extent_bytes
        self._slots = most_extents + _SPARE_SLOTS
        self._lock = threading.Lock()
        self._open_files: OpenFiles[CudaExtent] = OpenFiles()
        self._serial = 0
        self._stuck: list[CudaExtent] = []
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = context.location()
        self._properties.requestedHandleTypes = _EXPORT
        self._check_granularity()
        self._reserve()

    def create(self) -> CudaExtent:
        """Make an extent of zeros. Raises CudaFailed, OSError."""
        self._context.enter()
        attempt = f"make an extent of {self._extent_bytes} bytes on GPU {self._context.ordinal}"
        handle = call(attempt, driver.cuMemCreate, self._extent_bytes, self._properties, 0)
        try:
            descriptor = int(call(attempt, driver.cuMemExportToShareableHandle, handle, _EXPORT, 0))
        except CudaFailed:
            driver.cuMemRelease(handle)
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        extent = self._map(attempt, handle, descriptor, offered=False)
        try:
            words = self._extent_bytes // 4
            call(attempt, driver.cuMemsetD32Async, extent.address, 0, words, 0)
            call(attempt, driver.cuStreamSynchronize, 0)
        except CudaFailed:
            self.destroy(extent)
            raise
        return extent

    def adopt(self, descriptor: int) -> CudaExtent:
        """The extent that `descriptor` leads to, or offered memory; `descriptor` stays open.

        Raises:
            DescriptorRefused: it is not memory of this device of the size of an extent.
            CudaFailed, OSError: it could not be taken.
        """
        with self._lock:
            known = self._open_files.find(descriptor)
        if known is not None:
            return known
        self._context.enter()
        what = f"take offered memory back on GPU {self._context.ordinal}"
        try:
            handle = call(what, driver.cuMemImportFromShareableHandle, descriptor, _EXPORT)
        except CudaFailed as error:
            raise DescriptorRefused(
                "cannot take an extent back: the descriptor is no device memory"
            ) from error
        try:
            self._check_device(what, handle)
            own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        except BaseException:
            driver.cuMemRelease(handle)
            raise
        try:
            return self._map(what, handle, own, offered=True)
        except CudaFailed as error:
            raise DescriptorRefused(
                f"cannot take an extent back: it does not have {self._extent_bytes} bytes"
            ) from error

    def destroy(self, extent: CudaExtent) -> None:
        """Unmap and close; the memory is free when the last importer is gone.

        What a lost device does not let go of is tried again by `close`.
        """
        if extent.descriptor < 0:
            return
        if not self._let_go(extent):
            self._stuck.append(extent)
        with self._lock:
            self._open_files.remove(extent.descriptor)
            self._free.append(extent.slot)
        descriptor, extent.descriptor = extent.descriptor, -1
        os.close(descriptor)

    def export(self, extent: CudaExtent) -> int:
        """Return a descriptor that the caller owns. Raises OSError."""
        return fcntl.fcntl(extent.descriptor, fcntl.F_DUPFD_CLOEXEC, 0)

    def close(self) -> None:
        """Let go of everything, after the context was made again; all extents were destroyed."""
        self._stuck = [extent for extent in self._stuck if not self._let_go(extent)]
        driver.cuMemAddressFree(self._base, self._slots * self._extent_bytes)

    def _let_go(self, extent: CudaExtent) -> bool:
        try:
            self._context.enter()
        except CudaFailed:
            return False
        unmapped = driver.cuMemUnmap(extent.address, self._extent_bytes)[0]
        driver.cuMemRelease(extent.handle)
        return bool(unmapped == SUCCESS)

    def _check_device(self, attempt: str, handle: Any) -> None:
        properties = call(attempt, driver.cuMemGetAllocationPropertiesFromHandle, handle)
        if properties.location.id != self._context.ordinal:
            raise DescriptorRefused("cannot take an extent back: it is another device's memory")

    def _check_granularity(self) -> None:
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = int(
            call(
                "learn the granularity of device memory",
                driver.cuMemGetAllocationGranularity,
                self._properties,
                smallest,
            )
        )
        if self._extent_bytes % granularity:
            raise CudaFailed(
                f"cannot make extents of {self._extent_bytes} bytes on GPU "
                f"{self._context.ordinal}: its memory comes in units of {granularity} bytes; "
                "set device.extent_bytes to a multiple"
            )

    def _reserve(self) -> None:
        self._context.enter()
        size_bytes = self._slots * self._extent_bytes
        attempt = f"reserve {size_bytes} bytes of addresses on GPU {self._context.ordinal}"
        self._base = int(call(attempt, driver.cuMemAddressReserve, size_bytes, 0, 0, 0))
        self._free = list(reversed(range(self._slots)))

    def _map(self, attempt: str, handle: Any, descriptor: int, *, offered: bool) -> CudaExtent:
        """Map a handle into a free slot; the handle and descriptor are given back on failure."""
        with self._lock:
            if not self._free:
                driver.cuMemRelease(handle)
                os.close(descriptor)
                raise CudaFailed(f"cannot {attempt}: all {self._slots} places are taken")
            slot = self._free.pop()
            self._serial += 1
            serial = self._serial
        try:
            address = self._base + slot * self._extent_bytes
            call(attempt, driver.cuMemMap, address, self._extent_bytes, 0, handle, 0)
            try:
                access = driver.CUmemAccessDesc()
                access.location = self._context.location()
                access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                call(attempt, driver.cuMemSetAccess, address, self._extent_bytes, [access], 1)
                extent = CudaExtent(serial, slot, address, handle, descriptor, offered=offered)
                with self._lock:
                    self._open_files.add(descriptor, extent)
            except BaseException:
                driver.cuMemUnmap(address, self._extent_bytes)
                raise
        except BaseException:
            driver.cuMemRelease(handle)
            os.close(descriptor)
            with self._lock:
                self._free.append(slot)
            raise
        return extent
