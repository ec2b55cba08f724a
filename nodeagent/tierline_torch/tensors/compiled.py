"""Keeps what watches operators away from compiled code.

PyTorch's compiler makes a thread's dispatch keys a condition of what it compiles: code that a
watched job compiles, or only looks up, would be compiled again in a job that is not watched. So a
thread that enters compiled code is not watched until it is back. The one way in and out, in every
version, is that the compiler's module sets the thread's frame evaluation.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_NAMES = ("set_eval_frame", "_maybe_set_eval_frame")

Include = Callable[[bool], None]


class _Thread(threading.local):
    entered_by = 0
    """Id of the call that last went into compiled code from where this thread is watched."""


_thread = _Thread()
_before: dict[str, Any] = {}


def _compiler() -> ModuleType | None:
    return sys.modules.get("torch._dynamo.eval_frame")


def begin(is_watched: Callable[[], bool], watch: Include) -> None:
    """From now on call `watch` around compiled code, in threads that are watched.

    Both are written in C: the compiler sees no call of theirs.
    """
    compiler = _compiler()
    if compiler is None or _before:
        return
    for name in _NAMES:
        if hasattr(compiler, name):
            _before[name] = getattr(compiler, name)
            setting = _setting(_before[name], is_watched, watch)
            compiler.skip_code(setting.__code__)
            setattr(compiler, name, setting)


def end() -> None:
    """Do so no more."""
    compiler = _compiler()
    for name, before in _before.items():
        setattr(compiler, name, before)
    _before.clear()


def _setting(
    original: Callable[[Any], Any], is_watched: Callable[[], bool], watch: Include
) -> Callable[[Any], Any]:
    """Calls nothing written in Python where it would be compiled."""

    def set_frame_evaluation(callback: Any) -> Any:
        caller = id(sys._getframe(1))
        if callback is not None and is_watched():
            _thread.entered_by = caller
            watch(False)
        before = original(callback)
        if callback is None and _thread.entered_by == caller:
            watch(True)  # the last of several times counts: the keys are restored in between
        return before

    return set_frame_evaluation
