"""Waiting for several pieces of work at once, and workers that outlive what they meet.

A worker is a thread, or a task of the event loop, that does one thing after another for many. What
one of these raises is that one's end.

Invariant: a worker ends only by returning.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

_log = logging.getLogger(__name__)
_PAUSE_S = 0.01
"""A step that fails every time keeps no processor busy."""
WORKERS: Final = (
    *("closing", "deaths", "endpoint", "killing", "leases", "link", "log", "rounds", "streams"),
    "xids",
)
"""Their kinds."""
_faults: Counter[str] = Counter()
_counting = threading.Lock()


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of `work`, also if some fail, then raise the first failure."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def go_on(worker: str, run: Callable[[], None]) -> None:
    """Do `run`, in a thread, until it returns: after what it raises it begins again."""
    while True:
        try:
            run()
        except Exception:
            note_fault(worker)
            time.sleep(_PAUSE_S)
        else:
            return


def attempt(worker: str, step: Callable[[], None]) -> None:
    """Do one of several things that do not depend on each other."""
    try:
        step()
    except Exception:
        note_fault(worker)


def note_fault(worker: str) -> None:
    """Count and log the exception that is being handled; a worker's name is its kind's."""
    with _counting:
        _faults[worker] += 1
    _log.exception("a worker (%s) met what it did not expect, and goes on", worker)


def faults() -> Mapping[str, int]:
    """How often the workers of each kind met what they did not expect."""
    with _counting:
        return dict(_faults)
