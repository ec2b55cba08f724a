"""Prepares or unprepares a claim in a process that is killed at its N-th step.

A step is a request to the agent or a change of the disk; the process dies before it. Reads
one order a line and answers `killed`, or `done` when there were fewer steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from tierline_agent.admin.client import Agent
from tierline_agent.kubernetes.folders import Descriptions, Library, PodFolders
from tierline_agent.kubernetes.grants import grant_of
from tierline_agent.kubernetes.prepared_claims import PreparedClaims
from tierline_agent.processes.state import boot_id

CHANGES: Final = frozenset(
    {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}
)


class Steps:
    """Counts, and kills its process."""

    def __init__(self, last: int) -> None:
        self._left = last

    def take(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and str(arguments[1] or "").startswith(("w", "x"))
        if writes or event in CHANGES:
            self.take()


class CountedAgent(Agent):
    """An agent each request to which is a step."""

    def __init__(self, socket: Path, steps: Steps) -> None:
        super().__init__(socket, 1 << 20)
        self._steps = steps

    async def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._steps.take()
        return await super().ask(method, **arguments)


def prepared_in(folder: Path, agent: Agent) -> PreparedClaims:
    """What an agent in `folder` makes at its start."""
    library = Library(folder / "opt", folder / "lib")
    pods = PodFolders(folder / "run" / "tasks")
    descriptions = Descriptions(folder / "cdi")
    version = library.install("1")
    return PreparedClaims(agent, library, version, pods, descriptions, boot_id(), reconnect_s=900)


async def act(folder: Path, order: dict[str, Any], steps: Steps) -> None:
    agent = CountedAgent(folder / "run" / "admin.sock", steps)
    prepared = prepared_in(folder, agent)
    if order["act"] == "prepare":
        await prepared.prepare(grant_of(order["claim"], order["node"]))
    else:
        await prepared.unprepare(order["claim"]["metadata"]["uid"])


def main() -> None:
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            steps = Steps(order["last"])
            sys.addaudithook(steps.hear)
            asyncio.run(act(folder, order, steps))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else f"done {status}", flush=True)


if __name__ == "__main__":
    main()
