"""Arguments and results of a forward, walked and digested without asking the program's classes.

A value is walked into (path, leaf) pairs in a fixed order: tensors and arrays by dtype, shape and
bytes; numbers, strings and None by value; Python's own containers, those made from them,
dataclasses and plain objects (a model's output, a cache) by their parts. What cannot be walked
further (functions, modules, a tensor of which nothing is known) counts by its type only. The walk
is bounded in depth and in leaves, the digest also in bytes: at most MAX_DIGEST_BYTES of each leaf,
from its start.

Invariant: no method of a class of the program runs: a mapping may load what is asked for, an
attribute may raise. Containers are read by the methods of Python's own class.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tierline_torch.tensors.apart import apart, copy_bytes
from tierline_torch.tensors.looking import inner_tensors

MAX_DEPTH = 16
MAX_LEAVES = 100_000
MAX_DIGEST_BYTES = 64 << 20
"""Bytes of one tensor that enter a digest; about 50 ms of hashing."""
_PIECE_BYTES = 1 << 20

_SCALARS: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None))


def walk(value: object) -> Iterator[tuple[str, object]]:
    """The (path, leaf) pairs of a value, at most MAX_LEAVES."""
    left = MAX_LEAVES
    for pair in _walk("", value, MAX_DEPTH, set()):
        left -= 1
        if left < 0:
            yield "", "cut"
            return
        yield pair


def _walk(path: str, value: object, depth: int, within: set[int]) -> Iterator[tuple[str, object]]:
    kind = type(value)
    if issubclass(kind, (*_SCALARS, *_arrays())):
        yield path, value
        return
    if issubclass(kind, torch.Tensor):
        yield path, value
        parts: Iterable[tuple[str, Any]] | None = inner_tensors(value)  # type: ignore[arg-type]
        if not parts:
            return
    else:
        yield path, kind
        parts = _parts(value)
    if parts is None or depth == 0 or id(value) in within:
        return
    within.add(id(value))
    for key, part in parts:
        yield from _walk(f"{path}{key}", part, depth - 1, within)
    within.discard(id(value))


def _parts(value: Any) -> Iterable[tuple[str, Any]] | None:
    kind = type(value)
    if issubclass(kind, dict):
        return ((f"[{_told(key)}]", part) for key, part in dict.items(value))
    for base in (list, tuple):
        if issubclass(kind, base):
            return ((f"[{index}]", part) for index, part in enumerate(base.__iter__(value)))
    if issubclass(kind, (type, torch.nn.Module)) or callable(value):
        return None
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # none, or a descriptor of the class that raises
        return None
    if type(attributes) is not dict:
        return None
    return ((f".{key}", part) for key, part in attributes.items())


def _told(leaf: object) -> str:
    """A leaf that is no tensor, in a line."""
    kind = type(leaf)
    if issubclass(kind, type):
        return str(leaf.__qualname__)  # type: ignore[attr-defined]  # a type
    for base in _SCALARS:
        if issubclass(kind, base):
            return str(base.__repr__(leaf))  # type: ignore[call-arg]  # not of `object`
    return kind.__qualname__


def raw(leaf: torch.Tensor) -> torch.Tensor | None:
    """The bytes of a tensor in element order, in host memory; None if they are not known.

    What is in host memory and contiguous is not copied.
    """
    try:
        with torch._C.DisableTorchFunction():
            if torch._C._has_storage(leaf) and leaf.numel() and not leaf.data_ptr():
                return None  # it wraps others
            plain = leaf.detach()
            laid = plain.layout is torch.strided and not plain.is_quantized
            laid = laid and plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()
            return _in_order(plain) if laid else apart(_in_order, plain)
    except Exception:  # a tensor of another kind, or a user's class
        return None


def _in_order(plain: torch.Tensor) -> torch.Tensor:
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8)


def kind_of(leaf: Any) -> str:
    """The dtype and shape of a tensor or array, as far as they are known."""
    try:
        with torch._C.DisableTorchFunction():
            return f"{leaf.dtype} {tuple(leaf.shape)}"
    except Exception:  # a nested tensor, or a user's class
        return type(leaf).__qualname__


Kept = list[tuple[str, torch.Tensor | bytes | None]]
"""Parts of a digest: lines, and the bytes of the leaf that a line tells of."""


def keep(*values: object) -> Kept:
    """Lay down in host memory what the digest of these values is made of.

    A tensor's bytes that are in host memory are not copied. Of a device, this is the part that
    uses it.
    """
    kept: Kept = []
    for path, leaf in walk(values):
        if isinstance(leaf, torch.Tensor):
            kept.append((f"{path} {kind_of(leaf)}\n", _laid_down(leaf)))
        elif issubclass(type(leaf), _arrays()):
            kept.append((f"{path} {kind_of(leaf)}\n", _of_array(leaf)))
        else:
            kept.append((f"{path} {_told(leaf)}\n", None))
    return kept


def _arrays() -> tuple[type, ...]:
    """NumPy's arrays, where the program has NumPy."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray,)


def _of_array(leaf: Any) -> bytes:
    try:
        return bytes(leaf.tobytes()[:MAX_DIGEST_BYTES])
    except Exception:  # a user's class
        return b""


def _laid_down(leaf: torch.Tensor) -> torch.Tensor | None:
    """As much of the bytes as a digest is made of, in host memory.

    It is part of the job, and from a GPU faster into memory that is pinned.
    """
    if type(leaf) is not torch.Tensor or not leaf.is_cuda or not leaf.is_contiguous():
        here = raw(leaf)
        return None if here is None else here[:MAX_DIGEST_BYTES]
    there = leaf.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    there = there[:MAX_DIGEST_BYTES]
    return torch.empty(there.shape, dtype=torch.uint8, pin_memory=True).copy_(there)


def digest_kept(kept: Kept) -> bytes:
    """32 bytes that tell what was kept from other values: SHA-256 over the walk."""
    hasher = hashlib.sha256()
    for line, content in kept:
        hasher.update(line.encode(errors="replace"))
        if isinstance(content, torch.Tensor):
            for part in pieces(content):
                hasher.update(part)
        elif content is not None:
            hasher.update(content)
    return hasher.digest()


def pieces(content: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor of bytes, piece by piece; each is valid until the next one."""
    # PyTorch exports its memory by way of NumPy alone, which a program need not have.
    buffer = bytearray(min(len(content), _PIECE_BYTES))
    for part in content.split(_PIECE_BYTES) if buffer else ():
        copy_bytes(torch.frombuffer(buffer, dtype=torch.uint8)[: len(part)], part)
        yield memoryview(buffer)[: len(part)]


def digest(*values: object) -> bytes:
    """32 bytes that tell these values from others."""
    return digest_kept(keep(*values))
