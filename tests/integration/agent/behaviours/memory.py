"""What client and agent both map: the client changes it, cuts it off, and writes where it reads."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import EXTENT, FOR_EVER, Wire

_WHILE_S = 0.2
_EVIL = b"evil" * 16


def memory() -> Iterator[Behaviour]:
    """All of them."""
    sizes = {"RESIDENT": EXTENT, "RING": EXTENT, "CONTROL": 4096, "STAGING": 4 * EXTENT}
    for kind, size in sizes.items():
        yield f"does what it may with {kind.lower()}", _tampers(kind, size)
    for offset, name in ((0, "published"), (64, "consumed")):
        for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            yield f"{name} is {value:#x}", _scribbles(offset, value)
    yield "a random control page", _random_page
    yield "nothing is consumed", lambda target: _streams(target, lambda _: time.sleep(_WHILE_S))
    yield "writes what it stores", _writes_in_staging(store=True)
    yield "writes what it fetches", _writes_in_staging(store=False)
    yield "writes what is streamed, as the same user", _writes_in_ring
    yield "keeps what it frees", _keeps


def _streams(target: Target, meanwhile: Callable[[Wire], None]) -> None:
    wire = Wire(target)
    wire.load(16)
    wire.job()
    meanwhile(wire)
    wire.send("JobEnd", job=1)
    wire.settle()


def _tampers(kind: str, size: int) -> Any:
    def tamper(wire: Wire) -> None:
        if kind not in wire.lent_files:
            return
        descriptor = wire.lent[kind][0]
        deeds: list[Callable[[], Any]] = [
            lambda: os.ftruncate(descriptor, 0),
            lambda: os.ftruncate(descriptor, 2 * size),
            lambda: os.posix_fallocate(descriptor, 0, 2 * size),
            lambda: os.pwrite(descriptor, _EVIL, 0),
            lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
            lambda: os.fchmod(descriptor, 0),
            lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
            lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK),
            lambda: fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK),
        ]
        for deed in deeds:
            with suppress(OSError):
                deed()

    return lambda target: _streams(target, tamper)


def _scribbles(offset: int, value: int) -> Any:
    def scribble(wire: Wire) -> None:
        page, end_s = mmap.mmap(wire.lent["CONTROL"][0], 4096), time.monotonic() + _WHILE_S
        while time.monotonic() < end_s:
            struct.pack_into("<I", page, offset, value)
            time.sleep(0.0005)

    return lambda target: _streams(target, scribble)


def _random_page(target: Target) -> None:
    def scribble(wire: Wire) -> None:
        page, end_s = mmap.mmap(wire.lent["CONTROL"][0], 4096), time.monotonic() + _WHILE_S
        while time.monotonic() < end_s:
            page[:] = os.urandom(4096)

    _streams(target, scribble)


def _writes_in_staging(*, store: bool) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        if store:
            wire.reserve(8)
        else:
            wire.load(8)
        done = threading.Event()

        def scribble() -> None:
            while not done.is_set():
                wire.staging[:4096] = os.urandom(4096)

        writer = threading.Thread(target=scribble)
        writer.start()
        try:
            for number in range(40):
                verb = "Store" if store else "Fetch"
                wire.ask(verb, extent=number % 8, **({"length": EXTENT} if store else {}))
        finally:
            done.set()
            writer.join()
        wire.settle()

    return run


def _writes_in_ring(target: Target) -> None:
    def spoil(wire: Wire) -> None:
        slots = []
        for descriptor in wire.lent["RING"]:
            with suppress(OSError):  # another user is refused
                slots.append(mmap.mmap(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), EXTENT))
        page, end_s = mmap.mmap(wire.lent["CONTROL"][0], 4096), time.monotonic() + _WHILE_S
        consumed = 0
        while time.monotonic() < end_s:
            for slot in slots:
                slot[: len(_EVIL)] = _EVIL
            consumed = min(consumed + 1, 13)
            struct.pack_into("<I", page, 64, consumed)

    _streams(target, spoil)


def _keeps(target: Target) -> None:
    wire = Wire(target)
    wire.load(8)
    wire.ask("Free")
    wire.send("JobBegin", job=1, arena=0, deadline_ns=FOR_EVER)
    wire.settle()
