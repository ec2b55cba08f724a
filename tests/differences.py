"""Compares two values bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tierline_torch.tensors.structures import kind_of, raw, walk


def difference(first: object, second: object) -> str | None:
    """Where two values differ in any bit, as a path and a sentence; None if they are the same."""
    one, two = list(walk(first)), list(walk(second))
    for (path, left), (other_path, right) in zip(one, two, strict=False):
        where = f"output{path}"
        if path != other_path or type(left) is not type(right):
            return f"{where} has another structure"
        if isinstance(left, (torch.Tensor, np.ndarray)):
            if kind_of(left) != kind_of(right):
                return f"{where} has another dtype or shape"
            count = int(np.count_nonzero(_bytes(left) != _bytes(right)))  # type: ignore[arg-type]
            if count:
                return f"{where} differs in {count} bytes"
        elif left is not right and repr(left) != repr(right):
            return f"{where} differs"
    return None if len(one) == len(two) else "output has another structure"


def _bytes(value: torch.Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """None of a tensor with unknown bytes."""
    if isinstance(value, np.ndarray):
        return np.frombuffer(value.tobytes(), dtype=np.uint8)
    known = raw(value)
    return np.empty(0, dtype=np.uint8) if known is None else known.numpy()
