"""Flag words that a GPU waits for: written as fast as can be, by those that end, die and stop.

The agent's stream waits for `consumed`, which the client has for writing, and a client's own for
`published`. Whatever is written there, and by whom, the device is free again as soon as the job is
over.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.ends import stops
from tests.integration.agent.behaviours.wire import Wire

_EXTENTS = 16
"""More than have room at once."""
_WHILE_S = 0.2
_WORDS = {"published": 0, "consumed": 64, "asked": 128}
_VALUES = {
    "0": 0,
    "1": 1,
    "most": 0x7FFFFFFF,
    "beyond": 0x80000000,
    "all ones": 0xFFFFFFFF,
}
_SCRIBBLERS = 2
_AT_ONCE = 1_000_000
"""Writes without Python in between, in a millisecond or so."""


def waiting_streams() -> Iterator[Behaviour]:
    """All of them."""
    for word, offset in _WORDS.items():
        for what, number in _VALUES.items():
            yield f"{word} is always {what}", _in_a_job(_scribbling(offset, number), _ends)
    for what, end in _ENDS.items():
        for value in ("0", "beyond"):
            scribble = _scribbling(_WORDS["consumed"], _VALUES[value])
            yield f"consumed is always {value}, and it {what}", _in_a_job(scribble, end)
    yield "each word is anything", _in_a_job(_scribbling_at_random, _ends)
    yield "nothing is consumed, and it dies", _in_a_job(lambda _: None, _dies)
    yield "stops while nothing is consumed", stops(lambda wire: wire.job(), _EXTENTS)


def kept_streams() -> Iterator[Behaviour]:
    """They stand still for ever, until the agent does something about it."""
    yield "nothing is ever consumed", _in_a_job(lambda _: None, lambda _: signal.pause())
    yield (
        "stops for ever",
        _in_a_job(lambda _: None, lambda _: os.kill(os.getpid(), signal.SIGSTOP)),
    )


def _in_a_job(meanwhile: Callable[[Wire], Any], end: Callable[[Wire], Any]) -> Any:
    def run(target: Target) -> None:
        wire = Wire(target)
        wire.load(_EXTENTS)
        wire.job()
        meanwhile(wire)
        end(wire)

    return run


def control_page(wire: Wire) -> mmap.mmap:
    """The words of its arena."""
    return mmap.mmap(wire.lent["CONTROL"][0], mmap.PAGESIZE)


def _meanwhile(write: Callable[[mmap.mmap], None]) -> Callable[[Wire], None]:
    """Children write this again and again, also for a while after the client has left."""

    def begin(wire: Wire) -> None:
        for _ in range(_SCRIBBLERS):
            if os.fork() == 0:
                wire.socket.close()
                page, end_s = control_page(wire), time.monotonic() + 2 * _WHILE_S
                while time.monotonic() < end_s:
                    write(page)
                os._exit(0)
        time.sleep(_WHILE_S)

    return begin


def _scribbling(offset: int, value: int) -> Callable[[Wire], None]:
    def write(page: mmap.mmap) -> None:
        word = np.frombuffer(page, np.uint32, 1, offset)
        np.lib.stride_tricks.as_strided(word, (_AT_ONCE,), (0,)).fill(value)

    return _meanwhile(write)


def _write_anything(page: mmap.mmap) -> None:
    page[:192] = os.urandom(192)


_scribbling_at_random = _meanwhile(_write_anything)


def _ends(wire: Wire) -> None:
    wire.send("JobEnd", job=1)
    wire.settle()


def _dies(_: Wire) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _rewinds(wire: Wire) -> None:
    for _ in range(3):
        wire.send("Rewind", job=1)
        wire.until("Rewound", "Error")
    _ends(wire)


def _frees(wire: Wire) -> None:
    _ends(wire)
    wire.send("Free")
    wire.settle()


def _begins_again(wire: Wire) -> None:
    _ends(wire)
    wire.job(number=2)
    wire.send("JobEnd", job=2)
    wire.settle()


_ENDS: dict[str, Callable[[Wire], None]] = {
    "dies": _dies,
    "rewinds": _rewinds,
    "frees it": _frees,
    "begins again": _begins_again,
}
