"""What a forward takes and gives: digested, and compared bit by bit.

A value is walked into (path, leaf) pairs in a fixed order: tensors and arrays by dtype, shape and
bytes; numbers, strings and None by value; containers, dataclasses and plain objects (a model's
output, a cache) by their parts. What cannot be walked further (functions, modules) counts by its
type only. The walk is bounded in depth and in leaves, the digest also in bytes: at most
MAX_DIGEST_BYTES of each leaf, from its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from blake3 import blake3

MAX_DEPTH = 16
MAX_LEAVES = 100_000
MAX_DIGEST_BYTES = 64 << 20
"""Bytes of one tensor that enter a digest; about 30 ms of hashing."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


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
    if isinstance(value, (torch.Tensor, np.ndarray, *_SCALARS)):
        yield path, value
        return
    parts = _parts(value)
    if parts is None or depth == 0 or id(value) in within:
        yield path, type(value)
        return
    yield path, type(value)
    within.add(id(value))
    for key, part in parts:
        yield from _walk(f"{path}{key}", part, depth - 1, within)
    within.discard(id(value))


def _parts(value: object) -> Iterator[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", part) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, (type, torch.nn.Module)) or callable(value):
        return None
    attributes = getattr(value, "__dict__", None)
    if attributes is None:
        return None
    return ((f".{key}", part) for key, part in attributes.items())


def raw(leaf: torch.Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor or array, in element order."""
    if isinstance(leaf, np.ndarray):
        return np.frombuffer(np.ascontiguousarray(leaf).tobytes(), dtype=np.uint8)
    plain = leaf.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    bytes_: np.ndarray[Any, np.dtype[np.uint8]] = plain.view(torch.uint8).numpy()
    return bytes_


def _kind(leaf: torch.Tensor | np.ndarray[Any, Any]) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}"


Kept = list[tuple[str, np.ndarray[Any, np.dtype[np.uint8]] | None]]
"""What a digest is made of: lines, and the bytes of the leaf that a line tells of."""


def keep(*values: object) -> Kept:
    """Lay down in host memory what the digest of these values is made of.

    Bytes that are in host memory are not copied. Of a device, this is the part that uses it.
    """
    kept: Kept = []
    for path, leaf in walk(values):
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            kept.append((f"{path} {_kind(leaf)}\n", _laid_down(leaf)))
        else:
            name = leaf.__qualname__ if isinstance(leaf, type) else repr(leaf)
            kept.append((f"{path} {name}\n", None))
    return kept


def _laid_down(
    leaf: torch.Tensor | np.ndarray[Any, Any],
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As much of the bytes as a digest is made of, in host memory.

    It is part of the job, and from a GPU faster into memory that is pinned.
    """
    if not isinstance(leaf, torch.Tensor) or not leaf.is_cuda or not leaf.is_contiguous():
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


def difference(first: object, second: object) -> str | None:
    """Where two values differ in any bit, as a path and a sentence; None if they are the same."""
    one, two = list(walk(first)), list(walk(second))
    for (path, left), (other_path, right) in zip(one, two, strict=False):
        where = f"output{path}"
        if path != other_path or type(left) is not type(right):
            return f"{where} has another structure"
        if isinstance(left, (torch.Tensor, np.ndarray)):
            if _kind(left) != _kind(right):  # type: ignore[arg-type]  # same type as left
                return f"{where} has another dtype or shape"
            count = int(np.count_nonzero(raw(left) != raw(right)))  # type: ignore[arg-type]
            if count:
                return f"{where} differs in {count} bytes"
        elif left is not right and repr(left) != repr(right):
            return f"{where} differs"
    return None if len(one) == len(two) else "output has another structure"
