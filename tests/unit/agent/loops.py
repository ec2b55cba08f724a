"""Run a coroutine test in a loop that is made for it and closed after it.

`in_loop` uses the agent's own kind of loop; `in_virtual_time` one with a clock that jumps to
the next timer when nothing else is to do, so that a test of minutes takes none.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import looptime
import uvloop

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    return _in(uvloop.new_event_loop, test)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    return _in(looptime.new_event_loop, test)


def _in(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    test: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run
