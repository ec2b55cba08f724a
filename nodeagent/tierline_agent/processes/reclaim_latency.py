"""How long it takes until what a dead client had can be used again.

From the proof of its death until its copies have ended and its extents are free. A client that
leaves and lives on is not counted: its memory is free when it says so.

Invariant: a process that dies is counted once, with its last session.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tierline_agent.processes.identity import Process


class Reclaims:
    """Deaths that are being cleaned up after. For the event loop's thread only."""

    def __init__(self, observe_s: Callable[[float], None]) -> None:
        self._observe_s = observe_s
        self._leaving: Counter[Process] = Counter()
        self._died_s: dict[Process, float] = {}

    def session_leaves(self, process: Process) -> None:
        """A session begins to give up what it has."""
        self._leaving[process] += 1

    def session_left(self, process: Process) -> None:
        """It has given up everything."""
        self._leaving[process] -= 1
        if self._leaving[process] <= 0:
            del self._leaving[process]
        self._consider(process)

    def died(self, process: Process) -> None:
        """A process that had extents mapped is proven dead."""
        self._died_s[process] = time.monotonic()
        self._consider(process)

    def _consider(self, process: Process) -> None:
        if process in self._died_s and process not in self._leaving:
            self._observe_s(time.monotonic() - self._died_s.pop(process))
