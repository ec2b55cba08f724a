"""What an object of Python is made of, without asking the object.

A class may answer for itself what its attributes are, refuse to change, or do more than asked.
So these look at the type, and at the attributes where Python itself has them.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import io
import pickle
import random
import re
import struct
import sys
import threading
import types
import weakref
from _ctypes import CFuncPtr
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch
from blake3 import blake3

SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types, not those made from them: a subclass may have attributes."""

_BASES: tuple[type, ...] = (
    *(OrderedDict, dict, list, set, deque, tuple, frozenset),
    *(int, float, complex, str, bytes, threading.local, object),
)
"""Classes whose own state is known here. A class comes before its base."""

_CONSTANT: tuple[type, ...] = (
    *(types.EllipsisType, types.NotImplementedType, range, slice, type, enum.Enum),
    *(types.ModuleType, types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, functools._lru_cache_wrapper),
    *(weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType, re.Pattern),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(np.dtype, np.generic, np.ufunc, ctypes.CDLL, CFuncPtr),
    *(BaseException, threading.Thread, random.SystemRandom),
)
"""What does not change, or is nobody's to put back."""

_MACHINERY = frozenset(
    {"_thread", "asyncio", "concurrent", "logging", "multiprocessing", "tierline_torch", "triton"}
)
"""Packages of which no object is a model's state: locks, pools, loggers, kernels."""

_WORD_BYTES = struct.calcsize("P")
_MANAGED_DICT = 1 << 4
"""Of a type's flags: the dictionary of attributes lies before the object, not in it."""
_MOST_PICKLED_BYTES = 256 << 20


def is_constant(value: object) -> bool:
    """Whether a value does not change, or is nobody's to put back."""
    kind = type(value)
    return (
        kind in SCALARS or issubclass(kind, _CONSTANT) or value is sys.stdout or value is sys.stderr
    )


def is_machinery(kind: type) -> bool:
    """Whether objects of this type are of PyTorch's own workings, or of what programs run in."""
    if base(kind) is not object:
        return False
    # A user's class that is made from one of PyTorch's is the user's.
    return _package(kind) == "torch" or any(_package(one) in _MACHINERY for one in kind.__mro__)


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def base(kind: type) -> type:
    """The class that says how a type's objects keep what they contain; `object` for most."""
    return next(one for one in _BASES if issubclass(kind, one))


def attributes(value: object) -> dict[str, Any]:
    """The dictionary of an object's attributes itself; one of no account if it has none."""
    try:
        of = threading.local if isinstance(value, threading.local) else object
        own = of.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def slots(kind: type) -> list[types.MemberDescriptorType]:
    """The attributes that a type's objects have in slots."""
    return [
        member
        for one in kind.__mro__
        if "__slots__" in vars(one)
        for member in vars(one).values()
        if type(member) is types.MemberDescriptorType
    ]


def is_more_than_attributes(kind: type) -> bool:
    """Whether a type's objects keep something in C, beside what is known of their base."""
    known = base(kind)
    words = len(slots(kind))
    if kind.__dictoffset__ and not known.__dictoffset__:
        words += not kind.__flags__ & _MANAGED_DICT
    if kind.__weakrefoffset__ > 0 and not known.__weakrefoffset__:
        words += 1
    more_bytes = kind.__basicsize__ - known.__basicsize__ - words * _WORD_BYTES
    return more_bytes > 0 or kind.__itemsize__ > known.__itemsize__


def fingerprint(value: object) -> object:
    """What tells the state of an object from another one of its; None if nothing does."""
    digest = _Digest()
    try:
        pickle.Pickler(digest, pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # a user's class may raise anything; many have no way to be pickled
        return _position(value)
    return digest.hasher.digest()


def _position(value: object) -> object:
    if not isinstance(value, io.IOBase):
        return None
    try:
        return value.tell()
    except (OSError, ValueError):
        return None


class _Digest:
    """A file that keeps no more than what tells its content."""

    def __init__(self) -> None:
        self.hasher = blake3()
        self._size_bytes = 0

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        self._size_bytes += piece.nbytes
        if self._size_bytes > _MOST_PICKLED_BYTES:
            raise OverflowError("more than a model's state")
        self.hasher.update(piece)
        return piece.nbytes
