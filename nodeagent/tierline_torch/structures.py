"""What a forward takes and gives, walked and digested without asking the program's classes.

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

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from tierline_torch.looking import inner_tensors

MAX_DEPTH = 16
MAX_LEAVES = 100_000
MAX_DIGEST_BYTES = 64 << 20
"""Bytes of one tensor that enter a digest; about 30 ms of hashing."""

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
    if issubclass(kind, (np.ndarray, *_SCALARS)):
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


def raw(leaf: torch.Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor or array, in element order; none of one whose bytes are not known."""
    try:
        if isinstance(leaf, np.ndarray):
            return np.frombuffer(np.ascontiguousarray(leaf).tobytes(), dtype=np.uint8)
        with torch._C.DisableTorchFunctionSubclass():
            return _raw(leaf)
    except Exception:  # a tensor of another kind, or a user's class
        return np.empty(0, dtype=np.uint8)


def _raw(leaf: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    plain = leaf.detach()
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    bytes_: np.ndarray[Any, np.dtype[np.uint8]] = plain.view(torch.uint8).numpy()
    return bytes_


def kind_of(leaf: torch.Tensor | np.ndarray[Any, Any]) -> str:
    """The dtype and shape of a tensor or array, as far as they are known."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return f"{leaf.dtype} {tuple(leaf.shape)}"
    except Exception:  # a nested tensor, or a user's class
        return type(leaf).__qualname__


Kept = list[tuple[str, np.ndarray[Any, np.dtype[np.uint8]] | None]]
"""What a digest is made of: lines, and the bytes of the leaf that a line tells of."""


def keep(*values: object) -> Kept:
    """Lay down in host memory what the digest of these values is made of.

    Bytes that are in host memory are not copied. Of a device, this is the part that uses it.
    """
    kept: Kept = []
    for path, leaf in walk(values):
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            kept.append((f"{path} {kind_of(leaf)}\n", _laid_down(leaf)))
        else:
            kept.append((f"{path} {_told(leaf)}\n", None))
    return kept


def _laid_down(
    leaf: torch.Tensor | np.ndarray[Any, Any],
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As much of the bytes as a digest is made of, in host memory.

    It is part of the job, and from a GPU faster into memory that is pinned.
    """
    if type(leaf) is not torch.Tensor or not leaf.is_cuda or not leaf.is_contiguous():
        return raw(leaf)[:MAX_DIGEST_BYTES]
    there = leaf.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    there = there[:MAX_DIGEST_BYTES]
    here = torch.empty(there.shape, dtype=torch.uint8, pin_memory=True)
    here.copy_(there)
    bytes_: np.ndarray[Any, np.dtype[np.uint8]] = here.numpy()
    return bytes_


def digest_kept(kept: Kept) -> bytes:
    """32 bytes that tell what was kept from other values: BLAKE3 over the walk."""
    hasher = blake3()
    for line, content in kept:
        hasher.update(line.encode(errors="replace"))
        if content is not None:
            hasher.update(content.data)
    return hasher.digest()


def digest(*values: object) -> bytes:
    """32 bytes that tell these values from others."""
    return digest_kept(keep(*values))
