"""Killed processes, until they are dead.

SIGKILL ends a process when the kernel lets it end. One that is stopped at its exit by its tracer,
sleeps in the kernel, or lies in a frozen group keeps its descriptors and its memory, and none of
its code runs any more. So nobody waits for it: what it had is taken from it `DIES_WITHIN_S` after
it was killed (`on_outlived`), and it is killed again, and again, until it is dead. What it may
still write to is free when it is dead, and not before.

A tracer of such a process is killed, too, if it is of the same group of processes (cgroup: on
Kubernetes a container), and that is not the agent's own: on one machine it may be the shell of
whoever looks into it.

Invariant: each process that was killed is watched until it is dead.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tierline_agent.concurrency import attempt
from tierline_agent.processes.identity import Process, ProcessWatch

_log = logging.getLogger(__name__)
DIES_WITHIN_S: Final = 2.0
"""Longer than it takes to give back memory that is large, on a machine that is busy."""
_LONGEST_PAUSE_S: Final = 30.0
_MOST_THREADS: Final = 64
"""Of a process, in which tracers are looked for."""
_PROC = Path("/proc")


@dataclass
class _Pursued:
    ticket: int
    timer: asyncio.TimerHandle
    outlived: bool = False


class Killing:
    """Kills processes. For the event loop's thread only."""

    def __init__(self, watch: ProcessWatch, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = watch
        self._loop = loop
        self._pursued: dict[Process, _Pursued] = {}
        self.on_outlived: list[Callable[[Process], None]] = []
        """Told once of each process that is not dead by then."""

    def kill(self, process: Process) -> bool:
        """Send SIGKILL to exactly this process; returns whether it still ran. Raises OSError."""
        if not self._watch.kill(process):
            return False
        if process not in self._pursued:
            timer = self._loop.call_later(DIES_WITHIN_S, self._again, process, DIES_WITHIN_S)
            self._pursued[process] = pursued = _Pursued(0, timer)
            pursued.ticket = self._watch.on_death(process, self._died)
        return True

    def has_killed(self, process: Process) -> bool:
        """Whether a process that is not dead was killed: it says and asks nothing any more."""
        return process in self._pursued

    def has_outlived(self, process: Process) -> bool:
        """Whether it is still there, long after it was killed."""
        pursued = self._pursued.get(process)
        return pursued is not None and pursued.outlived

    @property
    def outliving(self) -> int:
        """How many there are."""
        return sum(pursued.outlived for pursued in self._pursued.values())

    def close(self) -> None:
        """Pursue nobody any more."""
        for pursued in self._pursued.values():
            pursued.timer.cancel()

    def _died(self, process: Process) -> None:
        pursued = self._pursued.pop(process, None)
        if pursued is not None:
            pursued.timer.cancel()

    def _again(self, process: Process, pause_s: float) -> None:
        pursued = self._pursued[process]
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        pursued.timer = self._loop.call_later(pause_s, self._again, process, pause_s)
        with suppress(OSError):  # it is tried again
            self._watch.kill(process)
            for tracer in _tracers_of_its_group(process.pid):
                _end_tracer(tracer, process.pid)
        if not pursued.outlived:
            pursued.outlived = True
            _log.error(
                "process %d was killed and has not ended: something keeps it (its tracer, a frozen "
                "group, the kernel); it has lost the device, and it is killed again",
                process.pid,
            )
            for tell in self.on_outlived:
                attempt("killing", partial(tell, process))


def _tracers_of_its_group(pid: int) -> set[int]:
    """The tracers of a process's threads that share its group; none if that is the agent's."""
    group = _group_of(str(pid))
    if not group or group == _group_of("self"):
        return set()
    return {tracer for tracer in _tracers_of(pid) if _group_of(str(tracer)) == group}


def _tracers_of(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in itertools.islice((_PROC / str(pid) / "task").iterdir(), _MOST_THREADS):
            for line in (thread / "status").read_text(errors="replace").splitlines():
                name, _, value = line.partition(":")
                if name == "TracerPid" and int(value):
                    yield int(value)


def _group_of(pid: str) -> str:
    try:
        return (_PROC / pid / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _end_tracer(tracer: int, pid: int) -> None:
    """Kill it, if it is still the one that it was. Raises OSError."""
    pidfd = os.pidfd_open(tracer)
    try:
        if tracer in _tracers_of(pid):  # only now: the pidfd keeps it from being another one
            _log.error("killed process %d, the tracer of process %d", tracer, pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
