"""One agent at a time owns a node: its lock, and the wait for the end of the one before.

An agent holds the lock of its run directory from before it opens anything to after it has closed
everything. Who finds it held refuses to start, or (`hand_over`) waits beside: the next agent's
process is there then, with its modules loaded and the devices' driver started, when the one before
ends, and clients are without an agent for as long as devices and tiers take to open.

Invariant: no device or tier is opened before the process of the agent that held the lock last is
gone. The lock alone is not enough: a process closes its files one after the other, and a GPU's
memory is free only with the last.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry

from tierline_agent.config import AgentConfig
from tierline_agent.devices.opening import prepare
from tierline_agent.endpoint import Endpoint
from tierline_agent.errors import AlreadyRunning
from tierline_agent.health import Health
from tierline_agent.identity import Process, ProcessWatch, start_ticks

_log = logging.getLogger(__name__)
_LOOK_S: Final = 0.01


class AgentLock:
    """The lock of a run directory, and who had it before."""

    def __init__(self, run_dir: Path) -> None:
        """Take it if it is free: `held` says so. Raises OSError."""
        self.path = run_dir / "agent.lock"
        self.held = False
        self._watch = ProcessWatch(asyncio.get_running_loop())
        self._gone: dict[Process, asyncio.Event] = {}
        """Of each process that was seen to hold it, whether that is dead."""
        self._own = Process(os.getpid(), start_ticks(os.getpid()) or 0)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._take()

    def __enter__(self) -> Self:
        """Hold it to the end of the block."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self.close()

    def close(self) -> None:
        """Give it back, if it is held."""
        self._watch.close()
        os.close(self._descriptor)

    def refuse(self) -> None:
        """Raise AlreadyRunning unless it is held."""
        if not self.held:
            raise AlreadyRunning(
                f"cannot serve {self.path.parent}: another agent does (it holds {self.path}); "
                "stop it or choose another run_dir"
            )

    async def wait(self, looked: Callable[[], None]) -> None:
        """Wait until it is held; `looked` is called all the while."""
        while not self.held:
            looked()
            await asyncio.sleep(_LOOK_S)
            self._take()

    async def alone(self) -> None:
        """Wait until every process that was seen to hold it is gone."""
        for gone in self._gone.values():
            await gone.wait()

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except BlockingIOError:
            pass
        # Watched while it is alive for certain: once it is a zombie nothing tells it from the dead,
        # and threads of it may still have files open.
        noted = _parse(os.pread(self._descriptor, 64, 0))
        if noted is not None and noted != self._own and noted not in self._gone:
            gone = self._gone[noted] = asyncio.Event()
            self._watch.on_death(noted, lambda _: gone.set())
        if self.held:
            own = f"{self._own.pid} {self._own.start_ticks}"
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, own.encode(), 0)


async def sole_agent(config: AgentConfig) -> AgentLock:
    """Make the agent's folders, and become the only agent that serves them.

    Raises:
        AlreadyRunning: another one does, and this one is not to wait for its end.
        OSError: a folder cannot be made.
    """
    run_dir = Path(config.run_dir)
    for folder in (Path(config.state_dir), run_dir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = AgentLock(run_dir)
    try:
        if config.kubernetes is not None and config.kubernetes.hand_over and not lock.held:
            await _stand_by(lock, config)
        lock.refuse()
        await lock.alone()
    except BaseException:
        lock.close()
        raise
    return lock


async def _stand_by(lock: AgentLock, config: AgentConfig) -> None:
    """Be ready, and wait until the agent that serves has ended."""
    _log.info("standing by until the agent that serves has ended")
    health = Health()
    with ExitStack() as standing:
        if config.metrics_port is not None:
            where = config.metrics_address, config.metrics_port
            standing.callback(Endpoint(CollectorRegistry(), health, *where).close)
        # Loaded by a thread of the agent's once it serves; this long before, it is in nobody's way.
        await asyncio.to_thread(import_module, "tierline_agent.kubernetes.service")
        await asyncio.to_thread(prepare, config.all_devices)
        await lock.wait(health.turned)
    _log.info("the agent that served has ended")


def _parse(noted: bytes) -> Process | None:
    """Who noted itself in the lock; None if nobody did."""
    try:
        pid, ticks = noted.split()
        return Process(int(pid), int(ticks))
    except ValueError:
        return None
