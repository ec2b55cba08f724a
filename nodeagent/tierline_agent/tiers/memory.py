"""Addresses and page-aligned memory: what direct I/O and long copies need from Python's buffers.

It does not copy under the interpreter's lock: `copy` goes through ctypes, which releases it, so two
links can move bytes at once. It does not keep buffers alive; an address is good only while the
caller holds the memoryview that it came from.
"""

from __future__ import annotations

import ctypes
import mmap

PAGE_BYTES = mmap.PAGESIZE
_PyBUF_SIMPLE = 0


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
