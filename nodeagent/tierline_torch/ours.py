"""Runs what is Tierline's within a program's call where nothing of the program's reaches it.

That is a thread of its own, for which the program's waits. A signal handler, an asynchronous
exception, Ctrl-C end the program's wait at once, and what runs here runs to its end. Modes of
PyTorch, profilers, tracers, gradients, and how deep the program's calls are belong to its thread:
none is here, so none is asked, and what is raised here is raised by what runs here. Python's
collector is at rest meanwhile: it would run the program's finalizers here, which may wait for what
the program's thread holds.

On a GPU the current device, stream and capture belong to a thread, too; there it runs in the
program's.

Invariant: one piece of work runs at a time. Where no thread can be had, it runs in the caller's.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from tierline_client import GiveBack, afterwards, elsewhere

_Result = TypeVar("_Result")


class _Running:
    lock = threading.RLock()


def _forked() -> None:
    _Running.lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def _here(work: Callable[[], _Result]) -> _Result:
    taken: list[GiveBack] = []

    def run() -> _Result:
        taken.append(_Running.lock.release)
        _Running.lock.acquire()
        return work()

    return afterwards(taken, run)


def ours(work: Callable[[], _Result]) -> _Result:
    """`work`, done as ours: its result, or its error."""
    is_ours: bool = _Running.lock._is_owned()  # type: ignore[attr-defined]  # the stub lacks it
    if is_ours or os.environ.get("TIERLINE_DEVICE") == "cuda":
        return _here(work)
    done = _thread.allocate_lock()
    given: list[_Result] = []
    raised: list[BaseException] = []
    done.acquire()

    def run() -> None:
        try:
            given.append(work())
        except BaseException as error:
            raised.append(error)

    if elsewhere(_Running.lock.acquire, run, _Running.lock.release, done.release):
        done.acquire()
    else:  # the process has as many threads as it may
        _here(run)
    if raised:
        try:
            raise raised[0]
        finally:
            raised.clear()  # it would refer to this frame
    return given[0]
