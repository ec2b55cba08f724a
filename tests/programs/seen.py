"""What a program can see of a value, as a string: the same for the same value, bit by bit.

Any tensor has one: of a kind that cannot be read, what is known of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def seen(value: Any) -> str:
    """Describe a value."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {seen(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return type(value).__name__ + "(" + ", ".join(map(seen, value)) + ")"
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return f"{type(value).__name__}{seen(vars(value))}"
    return _ADDRESS.sub("0x", repr(value))


def _tensor(value: torch.Tensor) -> str:
    kind = f"{type(value).__name__}/{value.layout}/{value.dtype}".replace("torch.", "")
    with torch.inference_mode(False), torch.no_grad():
        return f"{kind}:{'+'.join(_numbers(one) for one in _plain(value))}"


def _plain(value: torch.Tensor) -> list[torch.Tensor]:
    """Return dense tensors that hold all its numbers."""
    with torch._C.DisableTorchFunctionSubclass():
        if value.is_nested:
            return list(value.unbind())
    if type(value).__name__ == "MaskedTensor":
        return [value.get_data(), value.get_mask()]  # type: ignore[attr-defined]
    if hasattr(type(value), "__tensor_flatten__"):
        names, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
        return [getattr(value, name) for name in names]
    with torch._C.DisableTorchFunctionSubclass():
        value = value.as_subclass(torch.Tensor).detach()
        if value.is_quantized:
            return [value.int_repr(), value.dequantize()]
        return [value.to_dense() if value.layout != torch.strided else value]


def _numbers(value: torch.Tensor) -> str:
    with torch._C.DisableTorchFunctionSubclass():
        value = value.as_subclass(torch.Tensor).detach()
        shape = "x".join(map(str, value.shape))
        if value.is_meta or not value.numel():
            return f"{shape} of {value.device}"
        flat = value.resolve_conj().resolve_neg().clone().contiguous().reshape(-1).cpu()
        data = ctypes.string_at(flat.data_ptr(), flat.nbytes)  # NumPy may be missing
    return f"{shape} {hashlib.blake2b(data, digest_size=6).hexdigest()}"
