"""The task sockets: one listening socket per registered task, in a folder of its own.

The path says which task a client belongs to, the kernel says which process it is. Everything else
is the session's. Bounded: clients of a task and of the node; one too many gets an ERROR.

Invariant: every accepted socket is owned by a session, or given to the closer, before `accept`
is called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tierline_agent.context import Node
from tierline_agent.errors import ConfigError, ConnectionViolation, QuotaExceeded
from tierline_agent.processes.identity import Peer, Process
from tierline_agent.processes.state_files import make_folder, put_aside
from tierline_agent.registry import Task
from tierline_agent.sessions.replies import error_for
from tierline_agent.sessions.session import Session
from tierline_agent.transport.protocol import encode

_log = logging.getLogger(__name__)
_BACKLOG = 64
_AGAIN_S = 0.1
_LONGEST_PATH = 107
SOCKET_NAME = "tierline.sock"


def listen(path: Path, mode: int) -> socket.socket:
    """Listen at `path`, replacing what an earlier agent left there.

    Raises:
        ConfigError: the path is too long for a Unix socket.
        OSError: it cannot be made.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"cannot listen at {path}: a socket's path has at most {_LONGEST_PATH} bytes; "
            "choose a shorter run_dir"
        )
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # what unlink says of a folder
        put_aside(path, "a folder")
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class TaskServer:
    """The sockets and sessions of all tasks."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._listeners: dict[str, socket.socket] = {}
        self._sessions: dict[str, set[Session]] = {}
        self._leaving: dict[str, set[asyncio.Future[None]]] = {}
        """Sessions that are closed, by task, until they are quiet."""
        node.interventions.killing.on_outlived.append(self.outlived)

    def sessions(self, task: str | None = None) -> Iterator[Session]:
        """The sessions of a task, or all."""
        chosen = self._sessions.values() if task is None else [self._sessions.get(task, set())]
        for sessions in chosen:
            yield from sessions

    @property
    def client_count(self) -> int:
        """Connected clients."""
        return sum(map(len, self._sessions.values()))

    def open(self, task: Task) -> Path:
        """Listen for a task's clients; returns the socket's path. Raises OSError, ConfigError."""
        folder = self._folder / task.name
        path = folder / SOCKET_NAME
        if task.name not in self._listeners:
            make_folder(self._folder, 0o755)
            make_folder(folder, 0o755)
            # run_dir is the agent's alone; a pod gets this folder mounted, and runs as any user
            listener = listen(path, 0o666)
            self._listeners[task.name] = listener
            self._sessions.setdefault(task.name, set())
            self._listen(task)
        return path

    async def remove(self, task: str) -> None:
        """Stop listening for a task and close its sessions; returns when they are quiet."""
        self._stop_listening(task)
        leaving = set(self._leaving.get(task, ()))  # those that left by themselves
        for session in self._sessions.get(task, ()):
            session.client.connection.close()
            leaving.add(session.closed)
        if leaving:
            await asyncio.wait(leaving)
        self._sessions.pop(task, None)
        folder = self._folder / task
        with contextlib.suppress(OSError):
            (folder / SOCKET_NAME).unlink()
            folder.rmdir()

    def outlived(self, process: Process) -> None:
        """A process was killed, and does not end: it has lost what it had, and is not heard."""
        for session in [*self.sessions()]:
            if session.client.process == process:
                session.outlived()

    def close(self) -> None:
        """Stop listening; clients are left to find the next agent at the same paths."""
        for task in list(self._listeners):
            self._stop_listening(task)
        for session in list(self.sessions()):
            session.leave()

    def _stop_listening(self, task: str) -> None:
        listener = self._listeners.pop(task, None)
        if listener is not None:
            self._node.loop.remove_reader(listener.fileno())
            self._node.closer.close(task, [listener.detach()])

    def _listen(self, task: Task) -> None:
        """Accept clients, as long as earlier ones do not leave too much to close."""
        listener = self._listeners.get(task.name)
        if listener is not None:
            self._node.loop.add_reader(listener.fileno(), self._accept, task, listener)

    def _listen_soon(self, task: Task) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._node.loop.call_soon_threadsafe(self._listen, task)

    def _accept(self, task: Task, listener: socket.socket) -> None:
        if self._node.closer.is_full(task.name, partial(self._listen_soon, task)):
            _log.warning("no client of %s is accepted: descriptors of those before wait", task.name)
            self._node.loop.remove_reader(listener.fileno())
            return
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("cannot accept a client of %s: %s", task.name, error)
            # it waits in the queue of the socket, and would be reported without a pause
            self._node.loop.remove_reader(listener.fileno())
            self._node.loop.call_later(_AGAIN_S, self._listen, task)
            return
        connection.setblocking(False)
        try:
            self._check_room(task)
            peer = self._identify(connection)
        except (QuotaExceeded, ConnectionViolation, OSError) as failure:
            _log.warning("refusing a client of %s: %s", task.name, failure)
            with contextlib.suppress(OSError):
                connection.send(encode(error_for(failure), 0))
                connection.shutdown(socket.SHUT_RDWR)
            self._node.closer.close(task.name, [connection.detach()])
            return
        session = Session(self._node, task, peer, connection, self._closed)
        self._sessions[task.name].add(session)

    def _identify(self, connection: socket.socket) -> Peer:
        peer = self._node.watch.identify(connection)
        if self._node.interventions.killing.has_killed(peer.process):  # before it came to its turn
            raise ConnectionViolation(f"process {peer.process.pid} was killed")
        return peer

    def _check_room(self, task: Task) -> None:
        limits = self._node.config.limits
        if len(self._sessions[task.name]) >= limits.clients_per_task:
            raise QuotaExceeded(f"{task.name} has {limits.clients_per_task} clients already")
        if self.client_count >= limits.clients:
            raise QuotaExceeded(f"the agent has {limits.clients} clients already")

    def _closed(self, session: Session) -> None:
        name, closed = session.client.task.name, session.closed
        self._sessions.get(name, set()).discard(session)
        self._leaving.setdefault(name, set()).add(closed)
        closed.add_done_callback(partial(self._left, name))

    def _left(self, task: str, closed: asyncio.Future[None]) -> None:
        leaving = self._leaving[task]
        leaving.discard(closed)
        if not leaving:
            del self._leaving[task]
