"""One agent at a time owns a node: the wait for its lock, and for the end of the one before.

An agent holds the lock of its run directory from before it opens anything to after it has closed
everything. One that finds it held refuses to start, or (`hand_over`) stands by: all that depends on
nobody is prepared when the one before ends (`preparation`), and clients are without an agent for as
long as the rest takes. It is ready when that is done: an upgrade ends the one before then.

Invariant: nothing that is the last agent's is changed, nothing of it is read but what it says of
itself, and no device memory of its pool is taken, before the process that held the lock last is
gone, or has been dead for `lock.REMAINS_S`. An agent that dies while it stands by leaves no trace.

It is assumed that to make a context and to pin a piece (`pinned`) holds up the agent that serves no
more than another program on the GPU would: a process's memory and driver have locks of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry

from tierline_agent.admin.client import Agent
from tierline_agent.config import AgentConfig
from tierline_agent.devices.preparation import Prepared, Room, prepare, room_for_contexts
from tierline_agent.errors import AgentError
from tierline_agent.lifecycle.lock import AgentLock
from tierline_agent.telemetry.endpoint import Endpoint
from tierline_agent.telemetry.health import Health

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_ASK_AGAIN_S: Final = 0.5
"""A task that is registered meanwhile has its container and program started before it makes the
context for which there may be no room."""
_ANSWER_S: Final = 2.0


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
        """The room that it leaves now; None if it does not say."""
        self._asked_s = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._agent.ask("snapshot")
        except (AgentError, OSError, TimeoutError, ValueError):
            return None  # it ends: it lets nobody in any more
        return room_for_contexts(answer.get("snapshot", {}))

    async def room_again(self) -> Room | None:
        """The same, but None between two times of asking."""
        due_s = self._asked_s + _ASK_AGAIN_S
        return await self.room() if time.monotonic() >= due_s else None

    async def close(self) -> None:
        """Close the connection."""
        await self._agent.close()
