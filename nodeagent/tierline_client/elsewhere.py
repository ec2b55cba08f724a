"""Calls a function in a thread in which nothing of the program's runs.

A thread of `threading` or `_thread` does not do: until it runs, it goes by the number of the one
that started it, so that it may get an exception that the program sends to that one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tierline_client.afterwards import GiveBack
from tierline_client.interpreter import KNOWN, interpreter


@cache
def _function() -> Any:
    library, python = interpreter()
    given = ctypes.py_object
    library.tierline_elsewhere.argtypes = (KNOWN, given, given, given, given)
    library.tierline_elsewhere.restype = ctypes.c_int
    return partial(library.tierline_elsewhere, python)


def elsewhere(
    turn: GiveBack, function: Callable[[], object], over: GiveBack, done: GiveBack
) -> bool:
    """Call `turn`, `function`, `over`, `done` in a new thread; False where none could be started.

    Python's collector is at rest during `function`, whose result and exceptions are dropped. The
    other three are written in C, and cannot fail.
    """
    started: bool = _function()(turn, function, over, done) == 0
    return started
