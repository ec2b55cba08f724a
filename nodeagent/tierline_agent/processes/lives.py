"""How the agents of this pod ended before: one after the other soon after its start, or not.

An agent that crashes, is started again and crashes gives signs of life in between. What it says of
itself then would come and go, and pods would be placed on a node on which they cannot start. So it
knows of its earlier lives, and is not trusted before it has lived for a while.

A life that ends in good order, or is long, makes all earlier ones forgotten; so does another pod
(an upgrade, or one that somebody deleted), and a boot.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tierline_agent.processes.state import BootFile

LONG_S: Final = 600.0
"""How long a life must be to count for none that crashed: as long as for the kubelet's back-off."""
_MANY: Final = 2
"""One crash is an accident."""


class Lives:
    """The lives of a pod's agent."""

    def __init__(self, run_dir: Path) -> None:
        """Begin one."""
        self._file = BootFile(run_dir / "lives.json")
        self._pod = socket.gethostname()
        self._began_s = time.monotonic()
        self._short = self._file.read(self._of_this_pod) or 0
        self._note(self._short + 1)

    def __enter__(self) -> Self:
        """Note when it is long, by the running loop."""
        self._timer = asyncio.get_running_loop().call_later(LONG_S, self._note, 0)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """It ends: in good order, if by no error."""
        self._timer.cancel()
        if error is None:
            self._note(0)

    def crashing(self) -> bool:
        """Whether the lives before ended soon, and this one is not long yet; from any thread."""
        return self._short >= _MANY and time.monotonic() - self._began_s < LONG_S

    def _note(self, short: int) -> None:
        self._file.note({"pod": self._pod, "short": short})

    def _of_this_pod(self, noted: Any) -> int:
        return int(noted["short"]) if noted["pod"] == self._pod else 0
