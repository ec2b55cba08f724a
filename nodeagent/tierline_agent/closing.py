"""Closes, in threads, what clients can make closing wait.

Whoever drops the last reference to a file waits for what its kind does then: a socket with
SO_LINGER for its peer, a file of FUSE for the program that serves it. A client may send any
descriptor, with any message, and close its own; it may also leave it in a connection that nobody
reads any more, and then closing that connection drops it. So the event loop closes neither: it
hands both over.

Each task has a thread of its own for that, so that what one sends delays its own closings only. It
turns lingering off before it closes a socket, and looks into connections before it closes them, so
that what is left to wait for is rare. Who makes the thread wait nevertheless is bounded: the server
accepts no connection of a task while `MOST` descriptors of it wait (`server`).

Invariant: the event loop never drops the last reference to an object that a client made.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

MOST = 512
"""Descriptors of one task that may wait: what a client may send at once, and some connections."""
_IDLE_S = 2.0
"""A thread without work ends after so long."""
_AT_ONCE = 253  # the kernel's own limit for one message
_BYTES = 1 << 16
_NO_LINGERING = struct.pack("ii", 0, 0)


class _Queue:
    """What waits of one task, with what is being closed."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.count = 0
        self.drained: Callable[[], None] | None = None


class Closer:
    """Descriptors on their way out, by the name of their task."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._changed = threading.Condition()

    def close(self, task: str, descriptors: Iterable[int]) -> None:
        """Close these, which belong to this object from now on."""
        with self._changed:
            queue = self._queues.get(task)
            if queue is None:
                queue = self._queues[task] = _Queue()
                threading.Thread(
                    target=self._run, args=(task, queue), name=f"closing-{task}", daemon=True
                ).start()
            before = len(queue.waiting)
            queue.waiting.extend(descriptors)
            queue.count += len(queue.waiting) - before
            self._changed.notify_all()

    def is_full(self, task: str, drained: Callable[[], None]) -> bool:
        """Whether as many wait as may; `drained` is then called once, in a thread, when less do."""
        with self._changed:
            queue = self._queues.get(task)
            if queue is None or queue.count < MOST:
                return False
            queue.drained = drained
            return True

    def _run(self, task: str, queue: _Queue) -> None:
        while (descriptor := self._next(task, queue)) is not None:
            with suppress(OSError):  # closed it is nevertheless
                _close(descriptor)
            with self._changed:
                queue.count -= 1
                drained = queue.drained if queue.count < MOST else None
                if drained is not None:
                    queue.drained = None
            if drained is not None:
                drained()

    def _next(self, task: str, queue: _Queue) -> int | None:
        with self._changed:
            if not self._changed.wait_for(lambda: queue.waiting, _IDLE_S):
                del self._queues[task]
                return None
            return queue.waiting.popleft()


def _close(descriptor: int) -> None:
    one = _socket(descriptor)
    if one is not None:
        with one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            if one.family == socket.AF_UNIX:
                _empty(one)


def _socket(descriptor: int) -> socket.socket | None:
    """The socket that it is; what is none is closed."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None


def _empty(connection: socket.socket) -> None:
    """Close what is left in a connection, message by message. Raises OSError at the end."""
    connection.setblocking(False)
    connection.shutdown(socket.SHUT_RDWR)
    data = b"more"
    while data:
        data, descriptors, _, _ = socket.recv_fds(connection, _BYTES, _AT_ONCE)
        for descriptor in descriptors:
            one = _socket(descriptor)
            if one is not None:
                with one:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
