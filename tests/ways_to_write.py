"""In which ways a process may change what a descriptor leads to: its content, or its size."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.mmap.restype = ctypes.c_void_p
KEEP_SIZE, PUNCH_HOLE = 1, 2


def size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def call(name: str, *arguments: object) -> None:
    if getattr(LIBRARY, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def maps_to_write(descriptor: int) -> None:
    mmap.mmap(descriptor, size_of(descriptor))


def lets_a_mapping_write(descriptor: int) -> None:
    size, offset = ctypes.c_size_t(size_of(descriptor)), ctypes.c_long(0)
    address = LIBRARY.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    call("mprotect", ctypes.c_void_p(address), size, mmap.PROT_READ | mmap.PROT_WRITE)


def writes(descriptor: int) -> None:
    os.pwrite(descriptor, b"evil", 0)


def cuts_off(descriptor: int) -> None:
    os.ftruncate(descriptor, 1)


def makes_longer(descriptor: int) -> None:
    os.ftruncate(descriptor, 2 * size_of(descriptor))


def cuts_off_by_name(descriptor: int) -> None:
    os.truncate(f"/proc/self/fd/{descriptor}", 1)


def punches_a_hole(descriptor: int) -> None:
    mode = KEEP_SIZE | PUNCH_HOLE
    call("fallocate", descriptor, mode, ctypes.c_long(0), ctypes.c_long(size_of(descriptor)))


def copies_into_it(descriptor: int) -> None:
    source = os.memfd_create("source")
    os.write(source, b"evil")
    try:
        os.sendfile(descriptor, source, 0, 4)
    finally:
        os.close(source)


def seals(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


WAYS_TO_WRITE = [
    maps_to_write,
    lets_a_mapping_write,
    writes,
    cuts_off,
    makes_longer,
    cuts_off_by_name,
    punches_a_hole,
    copies_into_it,
    seals,
]
