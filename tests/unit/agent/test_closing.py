"""Whoever closes what clients sent may wait; nobody else does.

Whatever a client can put together is closed: sockets with SO_LINGER and data that nobody reads, in
a connection, and in a connection in a connection.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tierline_agent import closing as subject
from tierline_agent.closing import Closer

LINGER_S = 1
AT_ONCE_S = 0.5


@contextmanager
def lingering(seconds: int = LINGER_S) -> Iterator[int]:
    """The last descriptor of a TCP socket whose close waits for a peer that does not read."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = socket.create_connection(listener.getsockname())
        with closing(listener.accept()[0]):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
            ours.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            yield ours.detach()


def inside_a_connection(descriptor: int) -> int:
    """The last descriptor of a connection in which the last one of something else was left."""
    ours, theirs = socket.socketpair()
    socket.send_fds(theirs, [b"x"], [descriptor])
    os.close(descriptor)
    theirs.close()
    return ours.detach()


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def until(condition: Callable[[], bool], within_s: float = 60) -> float:
    """Wait for it; returns how long that took."""
    began_s = time.monotonic()
    never = threading.Event()
    while not condition():
        assert time.monotonic() < began_s + within_s
        never.wait(0.001)
    return time.monotonic() - began_s


def is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("depth", [0, 1], ids=["a socket", "a connection with a socket"])
def test_what_lingers_is_closed_at_once_and_elsewhere(depth: int) -> None:
    with lingering(600) as sent:
        descriptor = sent
        for _ in range(depth):
            descriptor = inside_a_connection(descriptor)
        closer, began_s = Closer(), time.monotonic()
        closer.close("a", [descriptor])
        assert time.monotonic() - began_s < AT_ONCE_S
        assert until(lambda: is_closed(descriptor)) < AT_ONCE_S


def test_a_task_waits_for_its_own_descriptors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST", 4)
    drained = threading.Event()
    with lingering() as descriptor:
        deep = inside_a_connection(inside_a_connection(inside_a_connection(descriptor)))
        closer = Closer()
        closer.close("hostile", [deep])
        closer.close("hostile", [os.dup(0) for _ in range(4)])
        other = os.dup(0)
        closer.close("good", [other])
        assert until(lambda: is_closed(other)) < AT_ONCE_S
        assert closer.is_full("hostile", drained.set), "its closing takes longer"
        assert not closer.is_full("good", drained.set)
        assert drained.wait(60)
        assert not closer.is_full("hostile", drained.set)


def test_nothing_stays_open_or_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_IDLE_S", 0.01)
    before, threads = open_descriptors(), threading.active_count()
    closer = Closer()
    for number in range(200):
        closer.close(f"task-{number % 3}", [inside_a_connection(os.dup(0)), os.dup(0)])
    until(lambda: open_descriptors() == before)
    until(lambda: threading.active_count() == threads)
    closer.close("task-0", [os.dup(0)])
    until(lambda: open_descriptors() == before)
