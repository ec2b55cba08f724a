"""Driver calls whose failures are sentences.

    CudaFailed (an OSError)
    ├── OutOfDeviceMemory    the device has no room for what was asked
    └── DeviceLost           the context is gone, by a sticky error or with its device: nothing
                             in it works any more, other devices are not concerned

It knows no device: the calling thread's current context is the caller's care.
"""

# ruff: noqa: N818 - the names say what is the case

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from cuda.bindings import driver
except ImportError as error:  # an extra of this distribution
    raise ImportError(
        "cannot use a cuda device: the package cuda-bindings is missing; "
        "install tierline with its extra `cuda`"
    ) from error

__all__ = ["CudaFailed", "DeviceLost", "OutOfDeviceMemory", "call", "driver", "failure_of"]

SUCCESS = 0
NOT_READY = 600
_STICKY = frozenset(
    {
        *(46, 201, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721, 911, 999),
    }
)
_MEMORY = 2


class CudaFailed(OSError):
    """A call of the driver failed."""

    def __init__(self, message: str, result: int = 0) -> None:
        super().__init__(message)
        self.result = result
        """The CUresult."""


class OutOfDeviceMemory(CudaFailed):
    """The device's memory is full."""


class DeviceLost(CudaFailed):
    """The device's context does not work any more."""


def failure_of(attempt: str, result: Any) -> CudaFailed:
    """The exception for a result that is no success; `attempt` completes "cannot ..."."""
    code = int(result)
    name = driver.CUresult(code).name
    if code == _MEMORY:
        return OutOfDeviceMemory(f"cannot {attempt}: the device's memory is full ({name})", code)
    if code in _STICKY:
        return DeviceLost(f"cannot {attempt}: the device's context is lost ({name})", code)
    return CudaFailed(f"cannot {attempt}: {name}", code)


def call(attempt: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of `function` in addition to its result: None, a value, or a tuple of them.

    Raises CudaFailed.
    """
    result, *values = function(*arguments)
    if result != SUCCESS:
        raise failure_of(attempt, result)
    if len(values) == 1:
        return values[0]
    return tuple(values) or None
