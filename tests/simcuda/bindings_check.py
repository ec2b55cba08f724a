"""A small agent and its client, both in Python, on the simulated driver through cuda-bindings.

Run with LD_LIBRARY_PATH naming the folder of the simulated libraries (test_simcuda.py does so).
The agent owns two extents and streams six through them; the client, another process, maps them
aliased and read-only, and hashes each on the device as it is published.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import socket
import struct
from typing import Any

from cuda.bindings import driver, nvml

EXTENT, SLOTS, COUNT = 2 << 20, 2, 6
CONSUMED = 64  # offset of the client's flag word; the agent's is at 0
GEQ = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def ok(answer: tuple[Any, ...]) -> Any:
    """The values of a call that succeeded."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def begin() -> None:
    """Initialise the driver and make the primary context of device 0 current."""
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))


def location() -> driver.CUmemLocation:
    """Device 0's memory."""
    here = driver.CUmemLocation()
    here.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    here.id = 0
    return here


def allow(address: int, size: int, flags: driver.CUmemAccess_flags) -> None:
    """Let device 0 use a mapped range."""
    access = driver.CUmemAccessDesc()
    access.location = location()
    access.flags = flags
    ok(driver.cuMemSetAccess(address, size, [access], 1))


def flag_page(descriptor: int) -> int:
    """Map and register the page of flag words; its address."""
    page = mmap.mmap(descriptor, mmap.PAGESIZE)
    KEPT.append(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ok(driver.cuMemHostRegister(address, mmap.PAGESIZE, 0))
    return address


KEPT: list[mmap.mmap] = []  # pages stay mapped for as long as a stream may look at them


def check_gauge(used: int) -> None:
    """NVML tells the same devices and the same bytes as the driver."""
    nvml.init_v2()
    assert nvml.device_get_count_v2() == 2
    handle = nvml.device_get_handle_by_index_v2(0)
    memory = nvml.device_get_memory_info_v2(handle)
    assert (memory.total, memory.used, memory.free) == (64 << 20, used, (64 << 20) - used)
    assert nvml.device_get_name(handle) == "Simulated GPU"
    uuid = bytes(ok(driver.cuDeviceGetUuid(ok(driver.cuDeviceGet(0)))).bytes)
    assert nvml.device_get_uuid(handle).replace("-", "") == "GPU" + uuid.hex()
    bus = nvml.device_get_pci_info_v3(handle).bus_id
    found = nvml.device_get_handle_by_pci_bus_id_v2(bus)
    assert nvml.device_get_index(found) == 0
    nvml.shutdown()


def client(channel: socket.socket) -> None:
    """The pod's side: import, map aliased, wait for each extent, hash it, call it consumed."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, SLOTS + 1)
    begin()
    flags = flag_page(descriptors[SLOTS])
    slots = [
        ok(driver.cuMemImportFromShareableHandle(descriptors[i], POSIX_FD)) for i in range(SLOTS)
    ]
    arena = int(ok(driver.cuMemAddressReserve(COUNT * EXTENT, 0, 0, 0)))
    for j in range(COUNT):
        ok(driver.cuMemMap(arena + j * EXTENT, EXTENT, 0, slots[j % SLOTS], 0))
    allow(arena, COUNT * EXTENT, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ)
    refused = driver.cuMemsetD32(arena, 0, 4)[0]
    assert refused == driver.CUresult.CUDA_ERROR_INVALID_VALUE, refused
    module = ok(driver.cuModuleLoadData(b"simcuda kernels"))
    hash_kernel = ok(driver.cuModuleGetFunction(module, b"sim_hash"))
    ok(driver.cuFuncLoad(hash_kernel))
    out = int(ok(driver.cuMemAlloc(8 * COUNT)))
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    for j in range(COUNT):
        ok(driver.cuStreamWaitValue32(stream, flags, j + 1, GEQ))
        values = (arena + j * EXTENT, EXTENT, out + 8 * j)
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        ok(driver.cuLaunchKernel(hash_kernel, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))
        ok(driver.cuStreamWriteValue32(stream, flags + CONSUMED, j + 1, 0))
    ok(driver.cuStreamSynchronize(stream))
    hashes = bytearray(8 * COUNT)
    ok(driver.cuMemcpyDtoH(hashes, out, len(hashes)))
    channel.sendall(hashes)


def simulated_hash(word: int, count: int) -> int:
    """What sim_hash makes of `count` equal 8-byte words (include/simcuda.h)."""
    value, mask = 0, (1 << 64) - 1
    for _ in range(count):
        value = ((value ^ word) * 0x9E3779B97F4A7C15) & mask
        value ^= value >> 29
    return value


def agent(channel: socket.socket) -> None:
    """The node agent's side: create, export, stream."""
    begin()
    before, total = ok(driver.cuMemGetInfo())
    assert (before, total) == (64 << 20, 64 << 20)
    assert ok(driver.cuDeviceGetCount()) == 2
    page = os.memfd_create("flags")
    os.ftruncate(page, mmap.PAGESIZE)
    flags = flag_page(page)
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = location()
    properties.requestedHandleTypes = POSIX_FD
    ring = int(ok(driver.cuMemAddressReserve(SLOTS * EXTENT, 0, 0, 0)))
    descriptors = []
    for i in range(SLOTS):
        handle = ok(driver.cuMemCreate(EXTENT, properties, 0))
        ok(driver.cuMemMap(ring + i * EXTENT, EXTENT, 0, handle, 0))
        descriptors.append(ok(driver.cuMemExportToShareableHandle(handle, POSIX_FD, 0)))
    allow(ring, SLOTS * EXTENT, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    assert ok(driver.cuMemGetInfo())[0] == before - SLOTS * EXTENT
    check_gauge(SLOTS * EXTENT)
    socket.send_fds(channel, [b"x"], [*descriptors, page])
    host = int(ok(driver.cuMemHostAlloc(COUNT * EXTENT, 0)))
    for j in range(COUNT):
        ctypes.memset(host + j * EXTENT, j + 1, EXTENT)
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    for j in range(COUNT):
        if j >= SLOTS:
            ok(driver.cuStreamWaitValue32(stream, flags + CONSUMED, j - SLOTS + 1, GEQ))
        slot = ring + j % SLOTS * EXTENT
        ok(driver.cuMemcpyHtoDAsync(slot, host + j * EXTENT, EXTENT, stream))
        ok(driver.cuStreamWriteValue32(stream, flags, j + 1, 0))
    ok(driver.cuStreamSynchronize(stream))
    hashes = channel.recv(8 * COUNT, socket.MSG_WAITALL)
    for j, seen in enumerate(struct.unpack(f"<{COUNT}Q", hashes)):
        expected = simulated_hash(int.from_bytes(bytes([j + 1]) * 8, "little"), EXTENT // 8)
        assert seen == expected, f"extent {j} arrived wrong"


def main() -> None:
    """Run both sides and take the client's end for part of the result."""
    here, there = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(target=client, args=(there,))
    process.start()
    there.close()
    agent(here)
    process.join()
    assert process.exitcode == 0, process.exitcode


if __name__ == "__main__":
    main()
