"""Huge pages under extents, where the kernel gives them.

A gate changes the protection of an extent twice a job. In pages of 4 KiB that costs 190 us for
4 MiB and empties the processor's address caches; in pages of 2 MiB, 6 us. Most systems give shared
memory no huge pages by themselves, but MADV_COLLAPSE (Linux 6.1) does on request, whatever the
system's setting. Best effort: without it everything works, slower.
"""

from __future__ import annotations

import ctypes
import mmap

HUGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def collapse(descriptor: int, size_bytes: int) -> bool:
    """Move the content of shared memory into huge pages; returns whether the kernel did.

    Mappings elsewhere stay valid and use the huge pages from their next fault on, where they lie
    at a boundary of HUGE_BYTES. Takes some milliseconds, without the interpreter's lock.
    """
    if size_bytes % HUGE_BYTES:
        return False
    span = size_bytes + HUGE_BYTES
    reserved = _libc.mmap(None, span, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if reserved == _FAILED:
        return False
    try:
        aligned = -(-reserved // HUGE_BYTES) * HUGE_BYTES
        shared = mmap.MAP_SHARED | _MAP_FIXED
        mapped = _libc.mmap(aligned, size_bytes, mmap.PROT_READ, shared, descriptor, 0)
        if mapped == _FAILED:
            return False
        return bool(_libc.madvise(aligned, size_bytes, _MADV_COLLAPSE) == 0)
    finally:
        _libc.munmap(reserved, span)
