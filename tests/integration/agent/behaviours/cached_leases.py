"""The file of the cached lease: locked too long, by others, in other ways, and spoilt."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tests.integration.agent.behaviours import Behaviour, Target
from tests.integration.agent.behaviours.ends import stops
from tests.integration.agent.behaviours.wire import (
    FOR_EVER,
    KINDS,
    NO_ARENA,
    ClosedError,
    Values,
    Wire,
    frame,
)

_RESIDENT = 4
"""So many extents stream nothing."""
_WHILE_S = 0.3
_MANY = 300
_WAITERS = 100
_TERMS = struct.Struct("<QII")
_OPEN = 1
_MOST = (1 << 64) - 1
Deed = Callable[[Wire, int], Any]


def cached_leases() -> Iterator[Behaviour]:
    """All of them."""
    for name, deed in _WITH_IT.items():
        for arena in (NO_ARENA, 0):
            whose = "alone" if arena == NO_ARENA else "with an arena"
            yield f"{name}, {whose}", _does(deed, arena)
    for name, idle in _WITHOUT_IT.items():
        yield name, _does_without(idle)
    yield "stops with it", stops(_take, _RESIDENT)
    yield "stops with it and said so", stops(lambda wire: _says_taken(wire, _take(wire)), _RESIDENT)
    yield "takes it for ever", _takes_for_ever
    yield "locks and unlocks for ever", _flaps


def kept_leases() -> Iterator[Behaviour]:
    """It is taken for ever, until the agent does something about it."""
    for name, deed in _FOR_EVER.items():
        yield name, _does(deed)


def _does(deed: Deed, arena: int = NO_ARENA) -> Any:
    """Do this with the lease."""

    def run(target: Target) -> None:
        wire = _client(target)
        deed(wire, _take(wire, arena))

    return run


def _does_without(deed: Callable[[Wire], Any]) -> Any:
    def run(target: Target) -> None:
        wire = _client(target)
        deed(wire)
        _asks_again(wire)

    return run


def _client(target: Target) -> Wire:
    wire = Wire(target)
    wire.load(_RESIDENT)
    return wire


def _file(wire: Wire) -> int:
    return wire.lent["LEASE"][0]


def _take(wire: Wire, arena: int = NO_ARENA) -> int:
    """Take it as soon as it is open; the number of the job that may begin by it."""
    for number in itertools.count(1):
        wire.job(arena, number)
        wire.ask("JobEnd", job=number)
        if _tries(wire, number + 1, arena):
            return number + 1
    raise AssertionError


def _tries(wire: Wire, number: int, arena: int) -> bool:
    if not _locks(_file(wire), fcntl.LOCK_SH):
        return False
    last, of_arena, _ = _TERMS.unpack(os.pread(_file(wire), _TERMS.size, 0))
    if last >= number and of_arena == arena:
        return True
    _unlocks(wire)
    return False


def _locks(file: int, how: int) -> bool:
    with suppress(OSError):
        fcntl.flock(file, how | fcntl.LOCK_NB)
        return True
    return False


def _unlocks(wire: Wire) -> None:
    fcntl.flock(_file(wire), fcntl.LOCK_UN)


def _again(wire: Wire, access: int = os.O_RDONLY) -> int:
    """Another open file of it, for writing, too, where this is its owner."""
    return os.open(f"/proc/self/fd/{_file(wire)}", access)


def _arena(wire: Wire) -> int:
    """The one that it says, if it says any."""
    said = os.pread(_file(wire), _TERMS.size, 0).ljust(_TERMS.size, b"\xff")
    return int(_TERMS.unpack(said)[1])


def _says_taken(wire: Wire, number: int, **values: Any) -> None:
    terms: Values = {"arena": NO_ARENA, "deadline_ns": FOR_EVER, **values}
    wire.send("JobTaken", job=number, **terms)


def _stays() -> None:
    time.sleep(_WHILE_S)


def _asks_again(wire: Wire) -> None:
    """A job like any other, if the connection is still there."""
    with suppress(ClosedError):
        wire.send("JobBegin", job=_MOST, arena=NO_ARENA, deadline_ns=FOR_EVER)
        if wire.until("Grant", "Error")[""] == "Grant":
            wire.ask("JobEnd", job=_MOST)


# -- what is done with it


def _dies(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    os.kill(os.getpid(), signal.SIGKILL)


def _stays_with_it(wire: Wire, number: int) -> None:
    _says_taken(wire, number, arena=_arena(wire))
    _stays()


def _returns_locked(wire: Wire, number: int) -> None:
    _says_taken(wire, number, arena=_arena(wire))
    wire.send("JobReturned", job=number)
    _stays()
    wire.settle()


def _unlocks_twice(wire: Wire, number: int) -> None:
    for _ in range(2):
        _unlocks(wire)
    _says_taken(wire, number, arena=_arena(wire))
    for _ in range(2):
        wire.send("JobReturned", job=number)
    wire.settle()


def _unlocks_in_silence(wire: Wire, _: int) -> None:
    _unlocks(wire)
    _stays()
    _asks_again(wire)


def _takes_twice(wire: Wire, number: int) -> None:
    for job in (number, number + 1):
        _says_taken(wire, job, arena=_arena(wire))
    wire.settle()


def _leaves_it_to_a_child(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    if os.fork() == 0:
        _stays()
        os._exit(0)


def _child_dies_with_it(wire: Wire, number: int) -> None:
    """The child unlocks for both: it is one open file."""
    child = os.fork()
    if child == 0:
        _unlocks(wire)
        _locks(_file(wire), fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    _returns_locked(wire, number)


def _locks_elsewhere(wire: Wire, number: int) -> None:
    """Another open file has a lock of its own, and another place in it."""
    other = _again(wire)
    _locks(other, fcntl.LOCK_SH)
    os.lseek(other, 8, os.SEEK_SET)
    os.lseek(_file(wire), 1 << 40, os.SEEK_SET)
    _unlocks(wire)
    _returns_locked(wire, number)
    os.close(other)
    _asks_again(wire)


def _closes_it(wire: Wire, number: int) -> None:
    os.close(_file(wire))
    _says_taken(wire, number)
    wire.send("JobReturned", job=number)
    wire.settle()


def _many_hold_it(wire: Wire, number: int) -> None:
    others = [_again(wire) for _ in range(_MANY)]
    assert all(_locks(other, fcntl.LOCK_SH) for other in others)
    _returns_locked(wire, number)


def _many_wait_for_it(wire: Wire, number: int) -> None:
    """Each unlocking wakes them all, the agent's own, too."""
    for _ in range(_WAITERS):
        waits = threading.Thread(target=fcntl.flock, args=(_again(wire), fcntl.LOCK_EX))
        waits.daemon = True
        waits.start()
    _returns_locked(wire, number)
    _unlocks(wire)
    _stays()


def _spoils(data: bytes, size: int) -> Deed:
    """Writes to it, and takes what it says then."""

    def spoil(wire: Wire, number: int) -> None:
        file = _again(wire, os.O_RDWR)
        os.ftruncate(file, size)
        os.pwrite(file, data, 0)
        _returns_locked(wire, number)
        _unlocks(wire)
        os.pwrite(file, data, 0)
        for job in range(number + 1, number + 30):
            _says_taken(wire, job)
            wire.send("JobReturned", job=job)
        wire.settle()

    return spoil


def _then(*messages: tuple[str, dict[str, Any]]) -> Deed:
    """Says that it took it, and then these at once."""

    def say(wire: Wire, number: int) -> None:
        _says_taken(wire, number, arena=_arena(wire))
        wire.send_bytes(
            b"".join(
                frame(name, 900 + k, **{"job": number, **values})
                for k, (name, values) in enumerate(messages)
            )
        )
        wire.settle()

    return say


_BEGIN = ("JobBegin", {"arena": NO_ARENA, "deadline_ns": FOR_EVER})
_WITH_IT: dict[str, Deed] = {
    "says nothing of it, and leaves": lambda _wire, _number: None,
    "says that it took it, and dies": _dies,
    "says that it took it, and stays": _stays_with_it,
    "says nothing of it, and stays": lambda _wire, _number: _stays(),
    "returns it locked": _returns_locked,
    "unlocks and returns it twice": _unlocks_twice,
    "unlocks it in silence": _unlocks_in_silence,
    "takes it twice": _takes_twice,
    "leaves it to a child": _leaves_it_to_a_child,
    "a child unlocks it, and dies": _child_dies_with_it,
    "locks it elsewhere": _locks_elsewhere,
    "closes it": _closes_it,
    f"{_MANY} hold it": _many_hold_it,
    f"{_WAITERS} wait for it": _many_wait_for_it,
    "cuts it off": _spoils(b"", 0),
    "writes that it is open": _spoils(_TERMS.pack(_MOST, NO_ARENA, _OPEN), _TERMS.size),
    "writes what it is not": _spoils(b"\xff" * 64, 1 << 20),
    "and JOB_BEGIN": _then(_BEGIN),
    "and JOB_END": _then(("JobEnd", {})),
    "and FREE": _then(("Free", {})),
    "and WORKSPACE": _then(("Workspace", {"workspace_bytes": 1, "flags": 1})),
    "and REWIND": _then(("Rewind", {})),
    "and YIELD": _then(("Yield", {"arena": NO_ARENA})),
    "and ACK": _then(("Ack", {}), ("JobReturned", {})),
    "and another one's return": _then(("JobReturned", {"job": _MOST})),
    "as the last job of all": lambda wire, _: _returns_locked(wire, _MOST),
}


# -- what is done without it


def _ready_made(name: str, **values: Any) -> Callable[[Wire], Any]:
    def say(wire: Wire) -> None:
        wire.send(name, **{"job": 1, **values})
        wire.settle()

    return say


def _keeps_of_the_kernel(wire: Wire) -> None:
    """A lease of the kernel's on the file, and no right to it."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    other = _again(wire)
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
        with suppress(OSError):
            fcntl.fcntl(other, fcntl.F_SETLEASE, kind)
    with suppress(OSError):
        os.fchmod(other, 0)


def _offers_it(wire: Wire) -> None:
    """Its file as a control page, and as an extent."""
    wire.send("Digests", items=[b"x" * 32])
    wire.send("Attach", arena=1, weight_bytes=1, items=[0], ring_slots=1)
    for kind in ("RING", "CONTROL"):
        wire.send("Fds", [_file(wire)], arena=1, kind=KINDS[kind], count=1)
    wire.settle()


_WITHOUT_IT: dict[str, Callable[[Wire], Any]] = {
    "locks it unasked": lambda wire: _locks(_file(wire), fcntl.LOCK_EX),
    "took what was never open": _ready_made("JobTaken", arena=NO_ARENA, deadline_ns=FOR_EVER),
    "took an arena of none": _ready_made("JobTaken", arena=15, deadline_ns=FOR_EVER),
    "took with a deadline before its release": _ready_made(
        "JobTaken", arena=NO_ARENA, release_ns=2, deadline_ns=1
    ),
    "returns what it never took": _ready_made("JobReturned"),
    "keeps it of the kernel": _keeps_of_the_kernel,
    "offers it as memory": _offers_it,
}


def _takes_for_ever(target: Target) -> None:
    """One job after another, each begun by it if it is open, and none said at once."""
    wire, end_s = _client(target), time.monotonic() + 3 * _WHILE_S
    number = 1
    while time.monotonic() < end_s:
        number = _take_from(wire, number)
        while _tries(wire, number, NO_ARENA):
            _says_taken(wire, number)
            _unlocks(wire)
            wire.send("JobReturned", job=number)
            number += 1
    wire.settle()


def _take_from(wire: Wire, number: int) -> int:
    wire.job(NO_ARENA, number)
    wire.ask("JobEnd", job=number)
    return number + 1


def _flaps(target: Target) -> None:
    """The agent finds it locked, as often as not, and nobody has taken it."""
    wire, end_s = _client(target), time.monotonic() + _WHILE_S
    number = 1
    while time.monotonic() < end_s:
        number = _take_from(wire, number)
        for _ in range(500):
            _locks(_file(wire), fcntl.LOCK_SH)
            _unlocks(wire)


# -- for ever


def _acknowledges(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    wire.until("Revoke")
    wire.send("Ack", job=number)
    signal.pause()


def _stops_itself(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    os.kill(os.getpid(), signal.SIGSTOP)


def _pauses(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    signal.pause()


def _pauses_returned(wire: Wire, number: int) -> None:
    _says_taken(wire, number)
    wire.send("JobReturned", job=number)
    signal.pause()


_FOR_EVER: dict[str, Deed] = {
    "keeps it, and says nothing": lambda _wire, _number: signal.pause(),
    "keeps it, and says so": _pauses,
    "keeps it, and acknowledges": _acknowledges,
    "returns it locked for ever": _pauses_returned,
    "stops with it for ever": _stops_itself,
}
