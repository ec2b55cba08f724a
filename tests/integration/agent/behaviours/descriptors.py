"""Descriptors that are not what they are said to be, too many, too few, or in the wrong place."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import EXTENT, KINDS, RESIDENT, Wire, frame

_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALL = _SIZE | fcntl.F_SEAL_SEAL
_FUTURE_WRITE = 0x10
_LINGER_S, _STAYS_S = 20, 0.5


def descriptors() -> Iterator[Behaviour]:
    """All of them."""
    files = _files()
    for what, file in files.items():
        os.close(file)
        for kind in ("RESIDENT", "RING", "CONTROL", "WORKSPACE", "BACKUP"):
            yield f"{what} as {kind.lower()}", _offers(what, kind)
    for kind, number in KINDS.items():
        yield f"{kind} unasked", _sends(frame("Fds", kind=number, count=1), 1)
    yield "5 announced, none sent", _sends(frame("Fds", count=5), 0)
    yield "1 announced, 64 sent", _sends(frame("Fds", count=1), 64)
    yield "64 from 65535 on", _sends(frame("Fds", first=65535, count=64), 64)
    yield "of arena 16", _sends(frame("Fds", arena=16, count=1), 1)
    for count in (1, 100, 253):
        yield f"{count} with STATS", _sends(frame("Stats"), count)
        yield f"{count} with a part of STATS", _sends(frame("Stats")[:7], count)
    yield "800 with STATS", _sends(frame("Stats"), 100, times=8)
    yield "800 with parts of STATS", _sends(b"\x00", 100, times=8)
    yield "the own connection", _own_connection
    yield "lingering sockets with STATS", _lingers(frame("Stats"))
    yield "lingering sockets with a part of STATS", _lingers(frame("Stats")[:5])
    yield "lingering sockets with FDS", _lingers(frame("Fds", count=3))
    yield "lingering sockets that nobody reads", _lingers_unread
    for lease in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        yield f"file lease {lease} on what is lent", _keeps_what_is_lent(lease)
        for role in ("RESIDENT", "RING", "CONTROL", "WORKSPACE", "BACKUP"):
            yield f"memory with file lease {lease} as {role.lower()}", _offers_kept(lease, role)


def _sends(data: bytes, count: int, times: int = 1) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        for _ in range(times):
            wire.send_bytes(data, [0] * count)
        wire.end()

    return run


def _own_connection(target: Target) -> None:
    """It is in flight in itself, and only the kernel's garbage collector ends it."""
    wire = Wire(target)
    wire.send_bytes(frame("Stats"), [wire.socket.fileno()] * 10)


def _deaf_listener() -> socket.socket:
    """One whose connections nobody reads."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return listener


def lingering_socket(listener: socket.socket | None = None) -> int:
    """A socket that waits in close: data is on its way to a peer that does not read.

    That is one of `listener`, or of one that stays open as long as this process lives.
    """
    listener = listener or _deaf_listener()
    ours = socket.create_connection(listener.getsockname())
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, _LINGER_S))
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        listener.detach()
        return ours.detach()


def _lingers(data: bytes) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        _sends_lingering(wire, data)
        wire.end()
        time.sleep(_STAYS_S)  # so long the agent would wait

    return run


def _lingers_unread(target: Target) -> None:
    """They lie in a connection that is closed for what came before them."""
    _sends_lingering(Wire(target), b"\xff" * 64, b"x")
    time.sleep(_STAYS_S)


def _sends_lingering(wire: Wire, *parts: bytes) -> None:
    """The last part with three of them, from a child.

    If the agent has closed its own by then the last ones are here: an exit does not wait for them.
    """
    listeners = [_deaf_listener() for _ in range(3)]
    child = os.fork()
    if child == 0:
        sockets = [lingering_socket(listener) for listener in listeners]
        for part in parts[:-1]:
            wire.send_bytes(part)
        wire.send_bytes(parts[-1], sockets)
        os._exit(0)
    for listener in listeners:
        listener.detach()  # they stay open as long as this process lives
    os.waitpid(child, 0)


def _keep(descriptor: int, kind: int) -> int:
    """A lease on the file, if the kernel gives one; a process that opens it waits for this one."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    with suppress(OSError):
        fcntl.fcntl(reader, fcntl.F_SETLEASE, kind)
    return reader


def _keeps_what_is_lent(kind: int) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        for _ in range(3):
            wire.reserve(16)
            for role in wire.lent_files:
                for descriptor in wire.lent.pop(role, []):
                    _keep(descriptor, kind)
            wire.ask("Free")

    return run


def _offers_kept(kind: int, role: str) -> Any:
    return lambda target: _offer(target, _keep(_memory(), kind), role)


def _offers(what: str, kind: str) -> Any:
    return lambda target: _offer(target, _files()[what], kind)


def _offer(target: Target, file: int, kind: str) -> None:
    wire = Wire(target)
    if kind in ("WORKSPACE", "BACKUP"):
        wire.send("WorkspaceReturn", workspace_bytes=EXTENT, extent_count=1, flags=1)
        good = _memory()
        wire.send("Fds", [file if kind == "WORKSPACE" else good], kind=4, count=1)
        wire.send("Fds", [file], kind=KINDS["BACKUP"], count=1)
    else:
        ring = int(kind != "RESIDENT")
        wire.send("Digests", items=[b"x" * 32])
        wire.send("Attach", weight_bytes=EXTENT, items=[0 if ring else RESIDENT], ring_slots=ring)
        wire.send("Fds", [file], kind=ring, count=1)
        wire.send("Fds", [file], kind=KINDS["CONTROL"], count=1)
    wire.settle()


def _memory(size: int = EXTENT, seals: int = _ALL, mode: int = 0o600) -> int:
    made = os.memfd_create("mean", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.fchmod(made, mode)
    os.ftruncate(made, size)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def _files() -> dict[str, int]:
    """One of each kind, open in this process."""
    reader, writer = os.pipe()
    folder = tempfile.gettempdir()
    with select.epoll() as one:
        epoll = os.dup(one.fileno())
    pair = [one.detach() for one in socket.socketpair()]
    return {
        "a pipe": reader,
        "a pipe's end": writer,
        "a socket": pair[0],
        "its other end": pair[1],
        "a folder": os.open(folder, os.O_RDONLY),
        "a place": os.open(folder, os.O_PATH),
        "zeros": os.open("/dev/zero", os.O_RDWR),
        "nothing": os.open("/dev/null", os.O_RDWR),
        "its own memory": os.open("/proc/self/mem", os.O_RDWR),
        "a file": os.open("/etc/passwd", os.O_RDONLY),
        "an epoll": epoll,
        "a pidfd": os.pidfd_open(os.getpid()),
        "memory without seals": _memory(seals=0),
        "memory that is not lent": _memory(),
        "memory that nobody writes": _memory(seals=_ALL | fcntl.F_SEAL_WRITE),
        "memory that nobody will write": _memory(seals=_ALL | _FUTURE_WRITE),
        "no memory": _memory(0),
        "less memory": _memory(EXTENT - 4096),
        "more memory": _memory(EXTENT + 4096),
        "a page": _memory(4096),
        "memory for everybody": _memory(mode=0o666),
        "memory that grows": _memory(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL),
        "memory for reading": os.open(f"/proc/self/fd/{_memory()}", os.O_RDONLY),
    }
