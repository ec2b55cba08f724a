"""Interventions against programs that keep from others what is theirs, told to their users.

A job that has the device beyond its limit, or whose weights cannot be read, is revoked: its program
may go on. A program that does not heed that, or keeps memory that it was told to give back, is
killed. Each is logged and kept for those that ask: the last few, numbered from 0.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from tierline_agent.processes.identity import Process
from tierline_agent.processes.killing import Killing
from tierline_agent.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)
_KEPT: Final = 256
_REVOKED: Final = "JobRevoked"


class KillReason(StrEnum):
    """Why a program was ended: stable words for scripts."""

    JOB_TOO_LONG = "JobTooLong"
    REVOCATION_IGNORED = "RevocationIgnored"
    JOB_NOT_RESUMED = "JobNotResumed"
    JOB_NOT_ENDED = "JobNotEnded"


@dataclass(frozen=True)
class Intervention:
    """An intervention against a program."""

    task: str
    """As it is registered; empty if that is not known any more."""
    pid: int
    action: str
    """`Revoke` or `Kill`."""
    reason: str
    sentence: str


class Interventions:
    """Ends programs, and remembers that and what else was done."""

    def __init__(self, killing: Killing, metrics: Metrics) -> None:
        self.killing = killing
        self._counts = {reason: metrics.kills.labels(reason.value) for reason in KillReason}
        self._kept: deque[Intervention] = deque(maxlen=_KEPT)
        self._next = 0

    def kill(self, task: str, process: Process, reason: KillReason, sentence: str) -> None:
        """End a process, if it still runs; `sentence` is for its user."""
        if not self.killing.kill(process):
            return
        _log.error("killed process %d of task %r: %s", process.pid, task, sentence)
        self._counts[reason].inc()
        self._keep(Intervention(task, process.pid, "Kill", reason.value, sentence))

    def revoked(self, task: str, process: Process, sentence: str) -> None:
        """A job of the process was revoked."""
        self._keep(Intervention(task, process.pid, "Revoke", _REVOKED, sentence))

    def _keep(self, one: Intervention) -> None:
        self._kept.append(one)
        self._next += 1

    def since(self, cursor: int) -> dict[str, Any]:
        """Those from number `cursor` on that are kept; `cursor` is what to ask with next."""
        missed = max(0, self._next - max(0, cursor))
        chosen = list(self._kept)[max(0, len(self._kept) - missed) :] if missed else []
        return {"interventions": [asdict(one) for one in chosen], "cursor": self._next}
