"""The agent, with its event loop measured: `python -m ... --config FILE` as the agent itself.

A callback that computes for more than `COMPUTES_S`, or waits for more than `WAITS_S`, is said on
standard error. It waits when the thread cannot run: time in which it could, and had no processor,
does not count (`schedstat`), so that other work of the machine is not taken for the agent's. That
slows what the thread waits for, too: another thread to leave the interpreter, a file to be
replaced. So waits may take longer; those that a client causes have no end of their own. A processor
that others slow (its caches, its clock, its other thread) computes longer for the same turn: then
the limit is that of a known piece of work, measured right after.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop

from tierline_agent.__main__ import main

COMPUTES_S = 0.02
WAITS_S = 0.25
YARDSTICK_S = 0.0011
"""What `yardstick_s` takes on the processor for which `COMPUTES_S` holds."""
WORDS = "kept the event loop"


def yardstick_s() -> float:
    """How long this thread computes now for a piece of work that never changes, at least."""

    def once() -> float:
        began_s = time.thread_time()
        seen: dict[str, tuple[int, ...]] = {}
        for number in range(3000):
            seen[str(number)] = (number, *seen.get(str(number // 2), ())[:4])
        return time.thread_time() - began_s

    return min(once() for _ in range(3))


def _is_long(computed_s: float) -> bool:
    return computed_s > COMPUTES_S and computed_s > COMPUTES_S * yardstick_s() / YARDSTICK_S


class Queueing:
    """How long a thread has waited for a processor."""

    def __init__(self) -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._file = os.open(path, os.O_RDONLY)

    def ns(self) -> int:
        return int(os.pread(self._file, 64, 0).split()[1])


class MeasuredLoop(uvloop.Loop):
    """Measures what is called by `call_soon` and the like, among it each step of a task."""

    def __init__(self) -> None:
        super().__init__()
        self._queueing = Queueing()
        self._newest = ""

    def _measured(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        what = getattr(callback, "__self__", None) or f"{callback} of {self._newest}"

        def run(*arguments: Any) -> Any:
            queued_ns, computed_ns = self._queueing.ns(), time.thread_time_ns()
            began_ns = time.monotonic_ns()
            try:
                return callback(*arguments)
            finally:
                kept_ns = time.monotonic_ns() - began_ns - (self._queueing.ns() - queued_ns)
                computed_ns = time.thread_time_ns() - computed_ns
                if _is_long(computed_ns / 1e9) or kept_ns - computed_ns > WAITS_S * 1e9:
                    self._say(f"{what} {callback}", kept_ns, computed_ns)

        return run

    def _say(self, what: str, kept_ns: int, computed_ns: int) -> None:
        ms = f"{kept_ns / 1e6:.1f} ms, {computed_ns / 1e6:.1f} ms of them computing"
        print(f"{what} {WORDS} for {ms}", file=sys.stderr, flush=True)

    def create_task(self, coroutine: Any, **options: Any) -> Any:  # type: ignore[override]
        self._newest = coroutine.__qualname__
        return super().create_task(coroutine, **options)

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_soon(self._measured(callback), *arguments, context=context)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_soon_threadsafe(self._measured(callback), *arguments, context=context)

    def call_later(self, delay: float, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_later(delay, self._measured(callback), *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_at(when, self._measured(callback), *arguments, context=context)

    def add_reader(self, file: Any, callback: Any, *arguments: Any) -> Any:  # type: ignore[override]
        return super().add_reader(file, self._measured(callback), *arguments)

    def add_writer(self, file: Any, callback: Any, *arguments: Any) -> Any:  # type: ignore[override]
        return super().add_writer(file, self._measured(callback), *arguments)


if __name__ == "__main__":
    uvloop.Loop = MeasuredLoop  # type: ignore[misc]
    sys.exit(main())
