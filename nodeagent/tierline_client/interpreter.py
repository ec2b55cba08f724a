"""Python as libtierline.so knows it: the addresses of its functions (`tierline_python`)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from tierline_client.library import library_path

_NAMES = (
    "PyObject_CallObject",
    "PyObject_CallFunctionObjArgs",
    "PyList_Size",
    "PyList_GetItem",
    "Py_DecRef",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyErr_Clear",
    "Py_IncRef",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyGC_Enable",
    "PyGC_Disable",
    "PyErr_CheckSignals",
)
_Python = ctypes.c_void_p * len(_NAMES)

KNOWN = ctypes.POINTER(_Python)
"""The type of `interpreter`'s pointer, for `argtypes`."""


@cache
def interpreter() -> tuple[ctypes.PyDLL, Any]:
    """The library as one that holds the interpreter's lock, and its first argument."""
    addresses = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _NAMES)
    return ctypes.PyDLL(str(library_path())), ctypes.pointer(
        _Python(*(one.value for one in addresses))
    )
