"""Which of two threads' calls is a job of its own, and which a part of the job in progress.

Jobs run one at a time, so a thread that wants one waits while another's runs. But a job may itself
wait for that thread: it gave a part of its work to a pool, or to a thread that serves a queue.
Nothing tells this before; while it lasts it shows: the thread of the job in progress neither
computes nor waits for Tierline. After some looks at which that was so, the call is taken for a part
of the job.

A wrong guess (the job's thread sleeps, or waits for a network) has a request run under the other
one's lease: right, and not counted. So what was a job of its own before waits longer.

Invariant: no call waits for a job whose thread waits for that call, for longer than `_PATIENT_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tierline_client import GiveBack

_LOOK_S = 0.05
_STILL_S = 0.15
"""How long the job's thread has stood still when a module without jobs joins it."""
_PATIENT_S = 1.0
"""The same for a module that was a job of its own."""
_IDLE = 0.02
"""Part of a look in which a thread that waits may yet compute: it polls."""


class JobLock:
    """The lock of the job in progress: one thread of the process has it at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder = 0
        self.give_back: GiveBack = self._lock.release
        """Let another thread have it. RuntimeError if this one has it not."""

    @property
    def mine(self) -> bool:
        """Whether this thread has it."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # the stub lacks it
        return owned

    def take(self, waits: Callable[[], bool], *, patient: bool) -> bool:
        """Wait for the lock, which this thread has not; False if the job in progress waits for it.

        `waits` tells whether a thread of this process waits for the agent.
        """
        if self._lock.acquire(blocking=False):
            self._holder = threading.get_native_id()
            return True
        still_s, before_s = 0.0, None
        while not self._lock.acquire(timeout=_LOOK_S):
            now_s = computed_s(self._holder)
            idle = before_s is not None and now_s - before_s < _LOOK_S * _IDLE
            idle = idle and sleeps(self._holder) and not waits()
            still_s = still_s + _LOOK_S if idle else 0.0
            before_s = now_s
            if still_s >= (_PATIENT_S if patient else _STILL_S):
                return False
        self._holder = threading.get_native_id()
        return True


def computed_s(thread: int) -> float:
    """The processor time of a thread of this process, by its kernel's number."""
    try:
        # The clock of a thread that has ended is refused; pthread_getcpuclockid would crash.
        return time.clock_gettime(~thread << 3 | 6)
    except OSError:
        return 0.0


def sleeps(thread: int) -> bool:
    """Whether a thread waits for something, rather than for a processor or a disk."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123  # in a wait
            return file.read().rpartition(b")")[2].split()[0] == b"S"
    except OSError:
        return True  # it has ended: nobody will end its job
