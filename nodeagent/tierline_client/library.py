"""Finds and loads libtierline.so, and declares its functions.

The functions are called with the interpreter lock released (`ctypes.CDLL`), so that one thread's
wait at a gate stops no other. Nothing here knows what the functions are for.

Invariant: the library is loaded once a process, and every function that is called has its argument
types declared; a library without one of them is refused when it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
from pathlib import Path

_u32 = ctypes.c_uint32
_u64 = ctypes.c_uint64
_pointer = ctypes.c_void_p

NO_ARENA = 0xFFFFFFFF
DIGEST_BYTES = 32


class Terms(ctypes.Structure):
    """`tierline_terms`."""

    _fields_ = (
        ("extent_bytes", _u64),
        ("period_ns", _u64),
        ("deadline_ns", _u64),
        ("flags", _u32),
        ("max_arenas", _u32),
        ("task_name", ctypes.c_char * 64),
        ("device_uuid", ctypes.c_char * 64),
    )


class WeightRange(ctypes.Structure):
    """`tierline_weight_range`."""

    _fields_ = (("offset", _u64), ("bytes", _u64))


class Place(ctypes.Structure):
    """`tierline_place`."""

    _fields_ = (("address", _u64), ("bytes", _u64))


class Origin(ctypes.Structure):
    """`tierline_origin`."""

    _fields_ = (("address", _pointer), ("bytes", _u64), ("offset", _u64))


class Layer(ctypes.Structure):
    """`tierline_layer`."""

    _fields_ = (("first_extent", _u32), ("last_extent", _u32))


class Profile(ctypes.Structure):
    """`tierline_layer_profile`."""

    _fields_ = (
        ("weight_bytes", _u64),
        ("compute_ns", _u64),
        ("flags", _u32),
        ("reserved", _u32),
        ("name", ctypes.c_char * 64),
    )


class Counters(ctypes.Structure):
    """`tierline_statistics`."""

    _fields_ = (
        ("jobs", _u64),
        ("misses", _u64),
        ("streamed_bytes", _u64),
        ("response_worst_ns", _u64),
    )


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "connect_device": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.c_char_p, _u32, ctypes.POINTER(_pointer)),
    ),
    "close": (None, (_pointer,)),
    "get_terms": (ctypes.c_int, (_pointer, ctypes.POINTER(Terms))),
    "reserve": (ctypes.c_int, (_pointer, _u32, _u64, _u64, _u32, ctypes.POINTER(_pointer))),
    "store": (ctypes.c_int, (_pointer, _u32, _u32, _pointer, _u64)),
    "written": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(_u32), _u32, ctypes.POINTER(_u32))),
    "weights": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(WeightRange), _u32)),
    "seal": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(Layer), _u32, ctypes.c_char_p)),
    "free": (ctypes.c_int, (_pointer, _u32)),
    "vacated": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(Place), _u32)),
    "origins": (
        ctypes.c_int,
        (_pointer, _u32, ctypes.POINTER(Origin), _u32, ctypes.POINTER(_u32)),
    ),
    "touched": (_pointer, (_pointer,)),
    "give_back": (
        ctypes.c_int,
        (_pointer, ctypes.POINTER(_u64), *[ctypes.POINTER(_u32)] * 3),
    ),
    "job_begin": (ctypes.c_int, (_pointer, _u32, _u32, _u64, _u64, ctypes.POINTER(_u64))),
    "job_end": (ctypes.c_int, (_pointer, _u64, _u64)),
    "rewind": (ctypes.c_int, (_pointer,)),
    "layer_begin": (ctypes.c_int, (_pointer, _u32, _u32)),
    "layer_end": (ctypes.c_int, (_pointer, _u32, _u32)),
    "output": (ctypes.c_int, (_pointer, _u64, ctypes.c_char_p, ctypes.c_char_p)),
    "ready": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(_u64), ctypes.POINTER(_u64))),
    "profile": (ctypes.c_int, (_pointer, _u32, ctypes.POINTER(Profile), _u32, _u64)),
    "notice": (ctypes.c_int, (_pointer, _u32, _u64, ctypes.c_char_p)),
    "waiting": (_u32, (_pointer,)),
    "wanted": (_u32, (_pointer,)),
    "get_statistics": (ctypes.c_int, (_pointer, ctypes.POINTER(Counters))),
    "word_wait": (ctypes.c_int, (_pointer, _u32, _u64)),
    "word_publish": (None, (_pointer, _u32)),
}


def library_path() -> Path:
    """Where libtierline.so is: TIERLINE_LIBRARY, else the environment's data folder.

    Raises FileNotFoundError if there is none.
    """
    override = os.environ.get("TIERLINE_LIBRARY")
    path = (
        Path(override)
        if override
        else Path(sysconfig.get_path("data")) / "lib" / "tierline" / "libtierline.so"
    )
    if not path.is_file():
        cause = "TIERLINE_LIBRARY names it" if override else "the installation is incomplete"
        raise FileNotFoundError(f"cannot load {path}: no such file, although {cause}")
    return path


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library with all functions declared.

    Raises OSError if it cannot be loaded, AttributeError if it lacks a function.
    """
    library = ctypes.CDLL(str(library_path()))
    library.tierline_last_error.restype = ctypes.c_char_p
    library.tierline_last_error.argtypes = ()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"tierline_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
