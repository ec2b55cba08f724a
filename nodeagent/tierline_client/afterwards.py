"""Calls a function and then, however it ended, the functions that release what it took.

A `finally` does not do: Python runs signal handlers, asynchronous exceptions and tracers between
any two of its instructions, also before the first one of a `finally` and of an `__exit__`. The
library has none there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from tierline_client.interpreter import KNOWN, interpreter

_Result = TypeVar("_Result")
GiveBack = Callable[[], object]
"""Written in C, so that nothing of the program's comes in between. It may raise."""


@cache
def _functions() -> tuple[Any, Any]:
    library, python = interpreter()
    given = ctypes.py_object
    library.tierline_afterwards.argtypes = (KNOWN, given, given, given, ctypes.c_int)
    library.tierline_exit.argtypes = (KNOWN, given, given, given, given, given)
    library.tierline_afterwards.restype = library.tierline_exit.restype = given
    return partial(library.tierline_afterwards, python), partial(library.tierline_exit, python)


def afterwards(taken: list[GiveBack], function: Callable[..., _Result], *args: Any) -> _Result:
    """Call `function`, and then all that is in `taken` by then, the last first.

    It puts there what gives a thing back *before* it takes that. What it raises is raised.
    """
    result: _Result = _functions()[0](function, args, taken, 0)
    return result


def enter_of(taken: list[GiveBack], function: Callable[[], None]) -> Callable[[], None]:
    """An `__enter__`, or any call without arguments, that has no instruction of Python itself.

    It calls `function`, and what is in `taken` if that raises.
    """
    return partial(_functions()[0], function, (), taken, 1)


def exit_of(taken: list[GiveBack], function: Callable[..., None]) -> Callable[..., None]:
    """An `__exit__` that calls `function` in this way, and has no instruction of Python itself."""
    return partial(_functions()[1], function, taken)
