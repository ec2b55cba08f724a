"""The processors' use, as the kernel counts it: /proc/stat against the run's own processes."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tierline_cli.local.steadiness import Load

_STAT: Final = Path("/proc/stat")
_FIELDS: Final = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two."""
_IDLE: Final = (3, 4)
_STEAL: Final = 7
_WINDOW_S: Final = 1.0
"""About a job of a model on a processor; the kernel counts in hundredths."""


@dataclass(frozen=True)
class _Counters:
    """The processors' work since the machine started, in seconds of one processor."""

    total_s: float
    idle_s: float
    stolen_s: float
    own_s: float
    """By this process, a program of it, and those that ended and were waited for."""

    @classmethod
    def now(cls, pid: int) -> Self:
        """Read them; all zero on a kernel that does not count. `pid` is of the program."""
        try:
            words = _STAT.read_text().split("\n", 1)[0].split()[1 : 1 + _FIELDS]
        except OSError:
            words = []
        ticks = [*map(int, words), *([0] * (_FIELDS - len(words)))]
        seconds = [tick / os.sysconf("SC_CLK_TCK") for tick in ticks]
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(
            total_s=sum(seconds),
            idle_s=sum(seconds[at] for at in _IDLE),
            stolen_s=seconds[_STEAL],
            own_s=sum(one.ru_utime + one.ru_stime for one in used) + _cpu_time_s(pid),
        )

    def load_since(self, begin: _Counters) -> Load | None:
        """How they were used since `begin`; None where nothing was counted."""
        total_s = self.total_s - begin.total_s
        if total_s <= 0:
            return None
        stolen_s = self.stolen_s - begin.stolen_s
        busy_s = total_s - (self.idle_s - begin.idle_s) - stolen_s
        others_s = busy_s - (self.own_s - begin.own_s)
        return Load(stolen_s / total_s, max(0.0, others_s) / total_s)


class LoadReader:
    """The load of a while, window by window, while one program of the run goes on."""

    def __init__(self, pid: int) -> None:
        """`pid` is of the program, whose own time is no load."""
        self.loads: list[Load] = []
        self._pid = pid
        self._begin_s = time.monotonic()
        self._begin = _Counters.now(pid)

    def look(self) -> None:
        """Note the load since the last window, if that was long enough ago."""
        now_s = time.monotonic()
        if now_s - self._begin_s < _WINDOW_S:
            return
        now = _Counters.now(self._pid)
        load = now.load_since(self._begin)
        if load is not None:
            self.loads.append(load)
        self._begin_s, self._begin = now_s, now


def _cpu_time_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of another process
    except OSError:
        return 0.0  # it ended, and is counted among those that were waited for
