"""One agent at a time owns a node: its lock, and the wait for the end of the one before.

An agent holds the lock of its run directory from before it opens anything to after it has closed
everything. Who finds it held refuses to start, or (`hand_over`) waits beside: all that depends on
nobody is prepared when the one before ends (`preparation`), and clients are without an agent for as
long as the rest takes. It is ready when that is done: an upgrade ends the one before then.

Invariant: nothing that is the last agent's is changed, nothing of it is read but what it says of
itself, and no device memory of its pool is taken, before the process that held the lock last is
gone. The lock alone is not enough: a process closes its files one after the other, and a GPU's
memory is free only with the last. An agent that dies while it stands by leaves nothing behind.

It is assumed that to make a context and to pin a piece (`pinned`) holds up the agent that serves no
more than another program on the GPU would: a process's memory and driver have locks of their own.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from prometheus_client import CollectorRegistry

from tierline_agent.config import AgentConfig
from tierline_agent.endpoint import Endpoint
from tierline_agent.errors import AgentError, AlreadyRunning
from tierline_agent.health import Health
from tierline_agent.identity import Process, ProcessWatch, start_ticks
from tierline_agent.kubernetes.agent import Agent
from tierline_agent.preparation import Prepared, Room, prepare, room_beside

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LOOK_S: Final = 0.01
_ASK_AGAIN_S: Final = 0.5
"""A task that is registered meanwhile has its container and program started before it makes the
context for which there may be no room."""
_ANSWER_S: Final = 2.0


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

    async def wait(self, looked: Callable[[], Awaitable[None]]) -> None:
        """Wait until it is held; `looked` is called all the while."""
        while not self.held:
            await looked()
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


async def sole_agent(config: AgentConfig) -> tuple[AgentLock, Prepared]:
    """Make the agent's folders, and become the only agent that serves them, prepared to open.

    Raises:
        AlreadyRunning: another one does, and this one is not to wait for its end.
        ConfigError: there is no such device.
        OSError: a folder cannot be made, or a driver does not start.
    """
    run_dir = Path(config.run_dir)
    for folder in (Path(config.state_dir), run_dir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = AgentLock(run_dir)
    try:
        if config.kubernetes is not None and config.kubernetes.hand_over and not lock.held:
            prepared = await _stand_by(lock, config)
        else:
            lock.refuse()
            await lock.alone()  # what a context takes is measured: nobody's memory comes or goes
            prepared = await asyncio.to_thread(prepare, config)
            await asyncio.to_thread(prepared.attach)
        await lock.alone()
    except BaseException:
        lock.close()
        raise
    _log.info("no process of an agent before is left")
    return lock, prepared


async def _stand_by(lock: AgentLock, config: AgentConfig) -> Prepared:
    """Prepare, be ready, and wait until the agent that serves has ended."""
    _log.info("standing by until the agent that serves has ended")
    health = Health()
    health.set("preparation", "it is not over")
    async with AsyncExitStack() as standing:
        if config.metrics_port is not None:
            where = config.metrics_address, config.metrics_port
            standing.callback(Endpoint(CollectorRegistry(), health, *where).close)
        serving = _Serving(Path(config.run_dir) / "admin.sock", config.limits.admin_line_bytes)
        standing.push_async_callback(serving.close)
        # Loaded by a thread of the agent's once it serves; this long before, it is in nobody's way.
        await asyncio.to_thread(import_module, "tierline_agent.kubernetes.service")
        room = await serving.room() or {}

        async def turned() -> None:
            health.turned()

        prepared = await _meanwhile(asyncio.to_thread(prepare, config, room), turned)

        async def looked() -> None:
            health.turned()
            room = await serving.room_again()
            if room is not None:
                await asyncio.to_thread(prepared.keep_to, room)

        await _meanwhile(asyncio.to_thread(prepared.attach), looked)
        health.set("preparation", "")
        _log.info("ready for the end of the agent that serves")
        await lock.wait(looked)
    _log.info("the agent that served has ended")
    return prepared


async def _meanwhile(work: Coroutine[Any, Any, _T], looked: Callable[[], Awaitable[None]]) -> _T:
    """Do some work; `looked` is called all the while."""
    task = asyncio.create_task(work)
    while not task.done():
        await looked()
        await asyncio.wait([task], timeout=_ASK_AGAIN_S)
    return await task


class _Serving:
    """The agent that serves, as one that stands by asks it."""

    def __init__(self, socket: Path, longest_line_bytes: int) -> None:
        self._agent = Agent(socket, longest_line_bytes)
        self._asked_s = 0.0

    async def room(self) -> Room | None:
        """What room it leaves now; None if it does not say."""
        self._asked_s = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._agent.ask("snapshot")
        except (AgentError, OSError, TimeoutError, ValueError):
            return None  # it ends: it lets nobody in any more
        return room_beside(answer.get("snapshot", {}))

    async def room_again(self) -> Room | None:
        """The same, but None between two times of asking."""
        due_s = self._asked_s + _ASK_AGAIN_S
        return await self.room() if time.monotonic() >= due_s else None

    async def close(self) -> None:
        """Close the connection."""
        await self._agent.close()


def _parse(noted: bytes) -> Process | None:
    """Who noted itself in the lock; None if nobody did."""
    try:
        pid, ticks = noted.split()
        return Process(int(pid), int(ticks))
    except ValueError:
        return None
