"""Deaths and stops at each step, and clients that do the same for ever."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.wire import (
    EXTENT,
    FOR_EVER,
    MINOR,
    NO_ARENA,
    ClosedError,
    Wire,
    frame,
)

_WHILE_S = 0.5
_STOPPED_S = 0.5


def ends() -> Iterator[Behaviour]:
    """All of them."""
    for step in range(len(_STEPS) + 1):
        yield f"dies after step {step}", _dies(step)
    for what, prepare in _STOPS.items():
        yield f"stops {what}", stops(prepare)
    yield "never reads", _never_reads
    for name, values in _FLOODS.items():
        yield f"{name} for ever", _floods(name, values)
    yield "STATS for ever on 6 connections", _floods_together
    for what, deed in _STORMS.items():
        yield f"{what} for ever", deed
    yield "5 slow connections", _slow
    yield "a child keeps the connection", _leaves_a_child


def _hello(wire: Wire) -> bytes:
    return frame("Hello", minor=MINOR, device=wire.device)


_STEPS: list[Callable[[Wire], Any]] = [
    lambda wire: wire.send_bytes(_hello(wire)[:20]),
    lambda wire: wire.send_bytes(_hello(wire)[20:]),
    lambda wire: wire.until("Fds"),
    lambda wire: wire.send("Reserve", weight_bytes=8 * EXTENT, largest_span_extents=1),
    lambda wire: wire.until("Reserved"),
    lambda wire: [wire.send("Store", extent=extent, length=EXTENT) for extent in range(8)],
    lambda wire: [wire.until("Stored") for _ in range(8)],
    lambda wire: wire.send("Seal"),
    lambda wire: wire.until("Sealed"),
    lambda wire: wire.send("JobBegin", job=1, arena=0, deadline_ns=FOR_EVER),
    lambda wire: wire.until("Grant"),
    lambda wire: wire.send("Rewind", job=1),
    lambda wire: wire.send("JobEnd", job=1),
    lambda wire: wire.send("Fetch", extent=1),
    lambda wire: wire.send("Free"),
    lambda wire: wire.send("Workspace", workspace_bytes=EXTENT, flags=1),
]


def _dies(steps: int) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target, greet=False)
        for step in _STEPS[:steps]:
            step(wire)
        os.kill(os.getpid(), signal.SIGKILL)

    return run


_STOPS: dict[str, Callable[[Wire], Any]] = {
    "idle": lambda _: None,
    "in a job": lambda wire: wire.job(),
    "with answers to read": lambda wire: [wire.send("Fetch", extent=k % 8) for k in range(300)],
}


def stops(prepare: Callable[[Wire], Any], extents: int = 8) -> Any:
    """A client with so many extents does this, stops, and is killed a while later."""

    def run(target: Target) -> None:
        child = os.fork()
        if child == 0:
            wire = Wire(target)
            wire.load(extents)
            prepare(wire)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        time.sleep(_STOPPED_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    return run


def _never_reads(target: Target) -> None:
    wire = Wire(target)
    wire.socket.settimeout(0.5)
    with suppress(OSError):
        while True:
            wire.socket.sendall(frame("Stats") * 200)


_FLOODS: dict[str, dict[str, Any]] = {
    "Stats": {},
    "Notice": {"kind": 3, "text": "n" * 190},
    "Output": {"job": 1},
    "Error": {"code": 1, "reason": "n" * 200},
    "Ack": {"job": 1},
    "Digests": {},
}


def _floods(name: str, values: dict[str, Any]) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        data, end_s = frame(name, **values) * 400, time.monotonic() + _WHILE_S

        def drain() -> None:
            with suppress(OSError):
                while wire.socket.recv(1 << 20):
                    pass

        threading.Thread(target=drain, daemon=True).start()
        with suppress(OSError):
            while time.monotonic() < end_s:
                wire.socket.sendall(data)
            wire.socket.shutdown(socket.SHUT_RDWR)

    return run


def _floods_together(target: Target) -> None:
    flood = _floods("Stats", {})
    floods = [threading.Thread(target=flood, args=(target,)) for _ in range(6)]
    for one in floods:
        one.start()
    for one in floods:
        one.join()


def _for_a_while(deed: Callable[[int], Any]) -> None:
    number, end_s = 0, time.monotonic() + _WHILE_S
    while time.monotonic() < end_s:
        number += 1
        deed(number)


def _connects(target: Target) -> None:
    kept: list[socket.socket] = []

    def connect(_: int) -> None:
        with suppress(OSError):
            kept.append(Wire(target, greet=False).socket)
        if len(kept) > 500:
            for one in kept:
                one.close()
            kept.clear()

    _for_a_while(connect)


def _greets(target: Target) -> None:
    def greet(_: int) -> None:
        with suppress(ClosedError, OSError):  # previous ones may not be gone yet
            Wire(target).socket.close()

    _for_a_while(greet)


def _reserves(target: Target) -> None:
    wire = Wire(target)

    def reserve(_: int) -> None:
        assert wire.reserve(16)[""] == "Reserved"
        for kind in ("RESIDENT", "RING", "CONTROL"):
            for descriptor in wire.lent.pop(kind):
                os.close(descriptor)
        wire.ask("Free")

    _for_a_while(reserve)


def _runs(target: Target, arena: int) -> None:
    wire = Wire(target)
    wire.load(16)

    def run(number: int) -> None:
        wire.job(arena, number)
        wire.ask("JobEnd", job=number)

    _for_a_while(run)


def _stores(target: Target) -> None:
    wire = Wire(target)
    wire.reserve(16)

    def store(_: int) -> None:
        wire.staging[:16] = os.urandom(16)
        for extent in range(16):
            wire.send("Store", extent=extent, length=EXTENT)
        for _ in range(16):
            wire.until("Stored", "Error")

    _for_a_while(store)


_STORMS: dict[str, Callable[[Target], None]] = {
    "connects": _connects,
    "greets": _greets,
    "reserves": _reserves,
    "has jobs": lambda target: _runs(target, NO_ARENA),
    "streams": lambda target: _runs(target, 0),
    "stores": _stores,
}


def _slow(target: Target) -> None:
    wires = [Wire(target, greet=False) for _ in range(5)]
    for byte in _hello(wires[0])[:30]:
        for wire in wires:
            wire.send_bytes(bytes([byte]))
        time.sleep(0.01)


def _leaves_a_child(target: Target) -> None:
    """The process that connected dies in a job, and its child has the socket, too."""
    wire = Wire(target)
    wire.load(8)
    wire.job()
    if os.fork() == 0:
        time.sleep(_STOPPED_S)
        os._exit(0)
