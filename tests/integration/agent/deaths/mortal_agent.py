"""The agent, killed at a step of a message: `python -m ... --config FILE` as the agent itself.

`TIERLINE_DIE` names a message and a number. From the first such message of a client, and the
descriptors that belong to it, to that client's next one, whatever leaves a trace outside of the
agent's own memory is a step: a message, a file that is begun or replaced, the lease's mark, the
flag words, an extent that is made or lent, what is stored. The agent is killed before the step of
that number. A death between two of them looks from outside like one before the second.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tierline_agent.__main__ import main
from tierline_agent.devices.cpu import CpuDevice, CpuWords
from tierline_agent.processes.state import BootFile, LeaseMark
from tierline_agent.sessions.session import Session
from tierline_agent.tiers.store import Store
from tierline_agent.transport.connection import Connection
from tierline_agent.transport.protocol import Fds

VARIABLE = "TIERLINE_DIE"
TRACES: list[tuple[type, str]] = [
    (Connection, "send"),
    (BootFile, "write"),
    (Path, "replace"),
    (LeaseMark, "set"),
    (LeaseMark, "clear"),
    (CpuWords, "restart"),
    (CpuWords, "publish"),
    (CpuWords, "ask"),
    (CpuDevice, "create_extent"),
    (CpuDevice, "export_extent"),
    (CpuDevice, "create_words"),
    (CpuDevice, "adopt_extent"),
    (CpuDevice, "destroy_extent"),
    (Store, "put"),
]


class Death:
    """When it comes."""

    def __init__(self, message: str, number: int) -> None:
        self._message = message
        self._left = number
        self._session: Session | None = None
        """The session of the message, as long as that is worked with."""
        self._over = False

    def arrives(self, session: Session, message: object) -> None:
        """A client has said something."""
        if session is self._session:
            self.step()
            if not isinstance(message, Fds):
                self._session, self._over = None, True
        elif type(message).__name__ == self._message and not self._over and not self._session:
            self._session = session
            self.step()

    def step(self) -> None:
        """One is about to be made."""
        if self._session is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def watch(owner: type, name: str, death: Death) -> None:
    """Count the calls of a method."""
    plain: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        death.step()
        return plain(*arguments, **named)

    setattr(owner, name, counted)


def mortal(death: Death) -> None:
    """Have this process die."""
    plain = Session.on_message

    def on_message(self: Session, sequence: int, message: Any) -> None:
        death.arrives(self, message)
        plain(self, sequence, message)

    Session.on_message = on_message  # type: ignore[method-assign]
    for owner, name in TRACES:
        watch(owner, name, death)


if __name__ == "__main__":
    if os.environ.get(VARIABLE):
        kind, step = os.environ[VARIABLE].split()
        mortal(Death(kind, int(step)))
    sys.exit(main())
