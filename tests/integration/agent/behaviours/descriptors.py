"""Descriptors that are not what they are said to be, too many, too few, or in the wrong place."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.agent.behaviours import Behaviour
from tests.integration.agent.behaviours.wire import EXTENT, KINDS, RESIDENT, Wire, frame

_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALL = _SIZE | fcntl.F_SEAL_SEAL
_FUTURE_WRITE = 0x10


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


def _sends(data: bytes, count: int, times: int = 1) -> Any:
    def run(path: Path) -> None:
        wire = Wire(path)
        for _ in range(times):
            wire.send_bytes(data, [0] * count)
        wire.end()

    return run


def _own_connection(path: Path) -> None:
    """It is in flight in itself, and only the kernel's garbage collector ends it."""
    wire = Wire(path)
    wire.send_bytes(frame("Stats"), [wire.socket.fileno()] * 10)


def _offers(what: str, kind: str) -> Any:
    def run(path: Path) -> None:
        wire, file = Wire(path), _files()[what]
        if kind in ("WORKSPACE", "BACKUP"):
            wire.send("WorkspaceReturn", workspace_bytes=EXTENT, extent_count=1, flags=1)
            good = _memory()
            wire.send("Fds", [file if kind == "WORKSPACE" else good], kind=4, count=1)
            wire.send("Fds", [file], kind=KINDS["BACKUP"], count=1)
        else:
            ring = int(kind != "RESIDENT")
            wire.send("Digests", items=[b"x" * 32])
            wire.send(
                "Attach", weight_bytes=EXTENT, items=[0 if ring else RESIDENT], ring_slots=ring
            )
            wire.send("Fds", [file], kind=ring, count=1)
            wire.send("Fds", [file], kind=KINDS["CONTROL"], count=1)
        wire.settle()

    return run


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
