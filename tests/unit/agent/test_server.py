"""The task sockets of the agent, without what sessions do."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.config import Limits
from tierline_agent.context import Node
from tierline_agent.processes.identity import ProcessWatch
from tierline_agent.processes.killing import Killing
from tierline_agent.registry import Task
from tierline_agent.sessions import server
from tierline_agent.transport.closing import Closer


def a_node(loop: asyncio.AbstractEventLoop, watch: ProcessWatch) -> SimpleNamespace:
    return SimpleNamespace(
        loop=loop,
        watch=watch,
        closer=Closer(),
        config=SimpleNamespace(limits=Limits()),
        interventions=SimpleNamespace(killing=Killing(watch, loop)),
    )


@in_loop
async def test_a_removed_task_has_nothing_at_work_of_clients_that_left_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies for a client that died may still be under way: its memory is nobody's until then."""
    loop = asyncio.get_running_loop()
    left, quiet = asyncio.Event(), asyncio.Event()

    class Leaving:
        """A session that closes by itself, and is not quiet yet."""

        def __init__(
            self, _node: Node, task: Task, _peer: Any, connection: socket.socket, on_closed: Any
        ) -> None:
            self.client = SimpleNamespace(task=task)
            self.closed = loop.create_task(quiet.wait())
            connection.close()
            loop.call_soon(self.leave, on_closed)

        def leave(self, on_closed: Callable[[Leaving], None]) -> None:
            on_closed(self)
            left.set()

    monkeypatch.setattr(server, "Session", Leaving)
    watch = ProcessWatch(loop)
    node = a_node(loop, watch)
    tasks = server.TaskServer(cast(Node, node), tmp_path)
    path = tasks.open(cast(Task, SimpleNamespace(name="vision")))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        await left.wait()

    assert list(tasks.sessions()) == []
    removing = loop.create_task(tasks.remove("vision"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not removing.done()
    quiet.set()
    await removing
    assert not path.exists()
    watch.close()


@in_loop
async def test_without_a_descriptor_a_client_waits_and_keeps_nothing_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[None] = loop.create_future()

    class Accepted:
        def __init__(self, *parts: Any) -> None:
            parts[3].close()
            accepted.set_result(None)

    monkeypatch.setattr(server, "Session", Accepted)
    tasks = server.TaskServer(cast(Node, a_node(loop, ProcessWatch(loop))), tmp_path)
    path = tasks.open(cast(Task, SimpleNamespace(name="vision")))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno(), hard))
        try:
            for _ in range(100):
                await asyncio.sleep(0)
            assert caplog.text.count("cannot accept a client of vision") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await accepted
    tasks._sessions.clear()
    await tasks.remove("vision")
