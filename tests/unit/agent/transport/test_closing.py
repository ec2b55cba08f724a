"""The thread that closes what clients sent may wait; nothing else does.

Whatever a client can put together is closed: sockets with SO_LINGER and data that nobody reads, in
a connection, and in a connection in a connection.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tierline_agent.transport import closing as subject
from tierline_agent.transport.closing import Closer

LINGER_S = 60
AT_ONCE_S = 30.0
"""Far less than what lingers takes, and long for a machine that is busy with other things."""


@contextmanager
def lingering() -> Iterator[int]:
    """The last descriptor of a TCP socket that waits in close for a peer that does not read.

    At the end the peer is gone, and nothing is waited for any more.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = socket.create_connection(listener.getsockname())
        with closing(listener.accept()[0]):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
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


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_what_lingers_is_closed_at_once_and_elsewhere(depth: int) -> None:
    with lingering() as sent:
        descriptor = sent
        for _ in range(depth):
            descriptor = inside_a_connection(descriptor)
        closer, began_s = Closer(), time.monotonic()
        closer.close("a", [descriptor])
        assert time.monotonic() - began_s < AT_ONCE_S
        assert until(lambda: is_closed(descriptor)) < AT_ONCE_S


@pytest.mark.parametrize("may", [True, False], ids=["", "no own table of descriptors"])
@pytest.mark.parametrize("depth", [0, 1])
def test_what_was_left_in_a_connection_is_dropped_and_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, may: bool
) -> None:
    """A record lock stands for a file of FUSE whose server does not answer to FLUSH.

    The kernel gives it up, and sends FLUSH, when a process closes any descriptor of the file. What
    is only dropped leaves it.
    """
    if not may:
        monkeypatch.setattr(subject, "_CLOSE_RANGE", 0xFFFF)  # no such call
    path = tmp_path / "file"
    path.touch()
    connection = inside_a_connection(os.open(path, os.O_RDWR))
    for _ in range(depth):
        connection = inside_a_connection(connection)
    with path.open("r+b") as locked, path.open("r+b") as other:
        fcntl.lockf(locked, fcntl.LOCK_EX)
        Closer().close("a", [connection])
        until(lambda: is_closed(connection))
        asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(other, fcntl.F_OFD_GETLK, asked)
        assert struct.unpack("hhqqi0q", answer)[0] == fcntl.F_WRLCK, "the lock is still there"


def test_a_task_waits_for_its_own_descriptors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST", 4)
    monkeypatch.setattr(subject, "_CLOSE_RANGE", 0xFFFF)  # no such call: what lingers waits
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
    assert drained.wait(AT_ONCE_S)
    assert not closer.is_full("hostile", drained.set)


def test_nothing_stays_open_or_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_IDLE_S", 0.01)
    # What other tests left may end meanwhile.
    before, threads = open_descriptors(), threading.active_count()
    closer = Closer()
    for number in range(200):
        closer.close(f"task-{number % 3}", [inside_a_connection(os.dup(0)), os.dup(0)])
    until(lambda: open_descriptors() <= before)
    until(lambda: threading.active_count() <= threads)
    closer.close("task-0", [os.dup(0)])
    until(lambda: open_descriptors() <= before)
