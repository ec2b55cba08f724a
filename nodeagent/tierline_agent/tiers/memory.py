"""Addresses and page-aligned memory: what direct I/O and long copies need from Python's buffers.

Memory that was never touched costs a page fault every 4 KiB, which takes ten times as long as the
copy into it. So what holds an extent on its way is `Warm`: kept, and in huge pages.

It does not copy under the interpreter's lock: `copy` goes through ctypes, which releases it, so two
links can move bytes at once. It does not keep buffers alive; an address is good only while the
caller holds the memoryview that it came from.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PAGE_BYTES = mmap.PAGESIZE
_PyBUF_SIMPLE = 0
_HUGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer (stable ABI since 3.11)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def address_of(view: memoryview) -> int:
    """Address of the first byte of a contiguous view.

    ctypes' own `from_buffer` refuses read-only memory, which is what a sealed extent is.
    Raises BufferError if the view is not contiguous.
    """
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), _PyBUF_SIMPLE)
    address: int = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return address


def copy(target: int, source: memoryview) -> None:
    """Copy all of `source` to the address `target`, without the interpreter's lock."""
    ctypes.memmove(target, address_of(source), source.nbytes)


def copy_out(target: memoryview, source: int) -> None:
    """Fill `target` from the address `source`, without the interpreter's lock."""
    ctypes.memmove(address_of(target), source, target.nbytes)


def scratch(size_bytes: int) -> memoryview:
    """Private zeroed memory at a page boundary; freed with the last view of it."""
    return memoryview(mmap.mmap(-1, size_bytes))


def touch(view: memoryview) -> None:
    """Give writable memory its pages now, if the kernel does that on request (Linux 5.14).

    Takes some milliseconds for an extent, without the interpreter's lock.
    """
    _libc.madvise(address_of(view), view.nbytes, _MADV_POPULATE_WRITE)


class Warm:
    """Private memory of `size_bytes` at a time, used again and again; for any thread.

    Invariant: memory is lent to one borrower at a time, and at most `kept` pieces are kept idle.
    """

    def __init__(self, size_bytes: int, kept: int) -> None:
        self._size_bytes = size_bytes
        self._kept = kept
        self._lock = threading.Lock()
        self._idle: list[memoryview] = []

    @contextmanager
    def borrow(self, size_bytes: int) -> Iterator[memoryview]:
        """So many bytes at a page boundary, with whatever is in them. Raises ValueError."""
        if size_bytes > self._size_bytes:
            raise ValueError(f"{size_bytes} bytes wanted of memory of {self._size_bytes}")
        with self._lock:
            whole = self._idle.pop() if self._idle else None
        if whole is None:
            whole = _in_huge_pages(self._size_bytes)
        with whole[:size_bytes] as part:
            yield part
        with self._lock:
            if len(self._idle) < self._kept:
                self._idle.append(whole)


def _in_huge_pages(size_bytes: int) -> memoryview:
    """Private memory that lies in huge pages where the system has them to give."""
    if size_bytes < _HUGE_BYTES:
        return scratch(size_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size_bytes + _HUGE_BYTES, flags=flags)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    begin = -address_of(view) % _HUGE_BYTES
    return view[begin : begin + size_bytes]
