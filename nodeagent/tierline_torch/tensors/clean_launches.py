"""Lets launches name what they read, and nothing else, while a job is looked at or captured.

PyTorch builds a launch's parameters in structures on the stack and leaves their holes as they are:
an old address there names a weight that the kernel does not read. A few of these in a captured
graph cost each of its jobs a fetch. So the stack is cleared before each operator. That takes some
microseconds of Python and is for jobs that are not timed.

What it does not see: structures on the heap, operators of other threads, and compiled code, whose
launchers have no holes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tierline_client.launches import Launches
from tierline_torch.tensors.operators import OperatorWatch


class _Cleared(OperatorWatch):
    def __init__(self, clear: Callable[[], None]) -> None:
        self._clear = clear

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Clear the stack."""
        del operator, args, kwargs
        self._clear()


def followed() -> AbstractContextManager[object]:
    """Within it this thread makes graphs that are captured again when weights move."""
    launches = _launches()
    return nullcontext() if launches is None else launches.following()


def clean_launches() -> AbstractContextManager[object]:
    """Within it operators find a clean stack; nothing where the library is not preloaded."""
    launches = _launches()
    return nullcontext() if launches is None else _Cleared(launches.clear_stack)


def _launches() -> Launches | None:
    try:
        launches = Launches()
    except OSError:
        return None
    return launches if launches.active else None
