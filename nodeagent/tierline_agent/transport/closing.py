"""Closes, in threads, what clients can make closing wait.

The thread that drops the last reference to a file waits for what its kind does then: a socket with
SO_LINGER for its peer, a file of FUSE for the program that serves it. A client may send any
descriptor, with any message, and close its own; it may also leave it in a connection that nobody
reads any more, and then closing that connection drops it. So the event loop closes neither: it
hands both over.

Each task has a thread of its own for that, so that what one sends delays its own closings only. A
task that makes its thread wait nevertheless is bounded: the server accepts no connection of it
while `MOST` of its descriptors wait (`sessions.server`).

The thread turns lingering off before it closes a socket, of whatever kind. What is left in a
connection it does not receive: to close a file of FUSE waits, in a way that not even SIGKILL ends,
until its server answers, and a file that was never received is dropped without that. It is a thread
at its end that drops it, because the kernel lets no thread linger that ends: one that was given its
own table of descriptors, with the connection in it, and that exits when the connection is in no
other table. So what a client leaves in connections, however deep, keeps nobody. Where a filter of
system calls forbids that (`close_range`), the kernel drops it while the bytes are read, and may
linger.

Invariant: the event loop never drops the last reference to an object that a client made.
Invariant: what fails at one descriptor is no other one's matter: each is counted as closed once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tierline_agent.concurrency import go_on, note_fault

MOST = 512
"""Descriptors of one task that may wait: what a client may send at once, and some connections."""
_IDLE_S = 2.0
"""A thread without work ends after so long."""
_LIBRARY = ctypes.CDLL(None)
_CLOSE_RANGE, _UNSHARE, _ALL = 436, 2, (1 << 32) - 1
"""<asm-generic/unistd.h>, <linux/close_range.h>; Python has no name for them."""
_BYTES = 1 << 16
_LOOK_S = 0.001
_NO_LINGERING = struct.pack("ii", 0, 0)
_WORKER = "closing"


class _Queue:
    """The descriptors of one task that wait to be closed, counted with those being closed."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.count = 0
        self.has_thread = False
        self.drained: Callable[[], None] | None = None


class Closer:
    """Closes descriptors in threads of its own, one a task, so that no close holds up the agent."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._changed = threading.Condition()

    def close(self, task: str, descriptors: Iterable[int]) -> None:
        """Close these, which belong to this object from now on."""
        with self._changed:
            queue = self._queues.get(task)
            if queue is None:
                queue = self._queues[task] = _Queue()
            before = len(queue.waiting)
            queue.waiting.extend(descriptors)
            queue.count += len(queue.waiting) - before
            if not queue.has_thread:
                self._start(task, queue)
            self._changed.notify_all()

    def is_full(self, task: str, drained: Callable[[], None]) -> bool:
        """Whether as many wait as may; `drained` is then called once, in a thread, when less do."""
        with self._changed:
            queue = self._queues.get(task)
            if queue is None or queue.count < MOST:
                return False
            queue.drained = drained
            return True

    def _start(self, task: str, queue: _Queue) -> None:
        """Have a thread for what waits; without one it waits for the next descriptor."""
        thread = threading.Thread(
            target=go_on,
            args=(_WORKER, lambda: self._run(task, queue)),
            name=f"closing-{task}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            note_fault(_WORKER)
        else:
            queue.has_thread = True

    def _run(self, task: str, queue: _Queue) -> None:
        while (descriptor := self._next(task, queue)) is not None:
            try:
                with suppress(OSError):  # closed it is nevertheless
                    _close(descriptor)
            finally:
                self._closed_one(queue)

    def _closed_one(self, queue: _Queue) -> None:
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
    # not by Python's socket, which takes other values for some kinds of sockets, or knows them not
    _LIBRARY.setsockopt(
        descriptor, socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING, len(_NO_LINGERING)
    )
    if not _is_of_unix(descriptor):
        os.close(descriptor)
        return
    with socket.socket(fileno=descriptor) as one:
        if not _is_empty(one):
            _leave_to_an_end(one)


def _is_of_unix(descriptor: int) -> bool:
    """Whether it is a Unix socket, the only kind in which descriptors can lie."""
    family, size = ctypes.c_int(-1), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _LIBRARY.getsockopt(
        *(descriptor, socket.SOL_SOCKET, socket.SO_DOMAIN, ctypes.byref(family), ctypes.byref(size))
    )
    return family.value == socket.AF_UNIX


def _is_empty(connection: socket.socket) -> bool:
    """Whether nothing is left in it, for certain."""
    with suppress(OSError):  # one that listens has no bytes; it may have connections
        connection.shutdown(socket.SHUT_RDWR)
        left = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
        return connection.type == socket.SOCK_STREAM and not any(left)
    return False


def _leave_to_an_end(connection: socket.socket) -> None:
    """Close a connection in such a way that what is left in it is dropped by a thread that ends."""
    descriptor = connection.fileno()
    ready, closed = threading.Event(), threading.Event()
    own = False

    def end() -> None:
        nonlocal own
        own = _keep_alone(descriptor)
        ready.set()
        closed.wait()

    thread = threading.Thread(target=end, name="ending", daemon=True)
    thread.start()
    ready.wait()
    if not own:
        with suppress(OSError):
            connection.setblocking(False)
            while connection.recv(_BYTES):
                pass
    connection.close()
    closed.set()
    thread.join()
    # Joined it is a little earlier; until it is gone what it drops counts as waiting.
    task = Path(f"/proc/self/task/{thread.native_id}")
    while task.exists():
        closed.clear()
        closed.wait(_LOOK_S)


def _keep_alone(descriptor: int) -> bool:
    """Give this thread its own table of descriptors, with this one in it; False if it may not."""
    if _LIBRARY.syscall(_CLOSE_RANGE, descriptor + 1, ctypes.c_uint(_ALL), _UNSHARE) != 0:
        return False
    if descriptor:
        _LIBRARY.syscall(_CLOSE_RANGE, 0, descriptor - 1, 0)
    return True
