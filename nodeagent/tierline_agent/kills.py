"""Programs that the agent ends, and why: so that a user learns what became of a container.

The agent kills only who keeps from others what is theirs: the device beyond a limit that others
were admitted beside, or memory that it was told to give back. Each kill that hit a living process
is logged and kept for whoever asks: the last few, numbered from 0.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from tierline_agent.identity import Process, ProcessWatch

_log = logging.getLogger(__name__)
_KEPT: Final = 256


class KillReason(StrEnum):
    """Why a program was ended: stable words for scripts."""

    JOB_TOO_LONG = "JobTooLong"
    REVOCATION_IGNORED = "RevocationIgnored"
    JOB_NOT_RESUMED = "JobNotResumed"
    JOB_NOT_ENDED = "JobNotEnded"


@dataclass(frozen=True)
class Kill:
    """A program that was ended."""

    task: str
    """As it is registered; empty if that is not known any more."""
    pid: int
    reason: KillReason
    sentence: str


class Kills:
    """Ends programs, and remembers."""

    def __init__(self, watch: ProcessWatch) -> None:
        self._watch = watch
        self._kept: deque[Kill] = deque(maxlen=_KEPT)
        self._next = 0

    def kill(self, task: str, process: Process, reason: KillReason, sentence: str) -> None:
        """End a process, if it still runs; `sentence` is for its user."""
        if not self._watch.kill(process):
            return
        _log.error("killed process %d of task %r: %s", process.pid, task, sentence)
        self._kept.append(Kill(task, process.pid, reason, sentence))
        self._next += 1

    def since(self, cursor: int) -> dict[str, Any]:
        """The kills from number `cursor` on that are kept; `cursor` is what to ask with next."""
        missed = max(0, self._next - max(0, cursor))
        chosen = list(self._kept)[max(0, len(self._kept) - missed) :] if missed else []
        return {"kills": [asdict(one) for one in chosen], "cursor": self._next}
