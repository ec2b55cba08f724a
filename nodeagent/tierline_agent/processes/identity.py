"""Which process is at the other end of a socket, and when it dies.

The kernel's credentials of the peer give a pid, and the start time tells which one of those that
ever had it. The peer's own pidfd (Linux 6.5) shows that it still runs when the start time is read;
the start time is compared whenever a pidfd is opened later. So a reused pid is not taken for it.

Processes are watched once however many connections they have; those that wait for a death are
called back in the event loop. Invariant: each watched process has one pidfd, closed when it has
died and been reported, or when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tierline_agent.concurrency import attempt
from tierline_agent.errors import ConnectionViolation

_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77  # <asm-generic/socket.h>; Python has no name for it


@dataclass(frozen=True)
class Process:
    """A process, for ever: the start time tells reused pids apart."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Peer:
    """The other end of a connection."""

    process: Process
    uid: int


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if its main thread has ended.

    Raises OSError: that cannot be found out, which proves no death.
    """
    state, ticks = _state(pid)
    return None if state in "ZX" else ticks


def _is_over(pid: int) -> bool:
    """Whether all threads of a process have ended. Raises OSError."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _has_ended(pidfd)
    finally:
        os.close(pidfd)


def ticks_computed(process: Process) -> int | None:
    """Processor time of all threads of a process, in clock ticks; None if that is not known."""
    try:
        fields = _fields(process.pid)
    except OSError:
        return None
    return int(fields[11]) + int(fields[12]) if int(fields[19]) == process.start_ticks else None


def _state(pid: int) -> tuple[str, int | None]:
    """The state of a process's main thread and when it started. Raises OSError."""
    try:
        fields = _fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return "X", None
    return fields[0], int(fields[19])


def _fields(pid: int) -> list[str]:
    """The kernel's words on a process, from its state on (proc_pid_stat(5)). Raises OSError."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()  # the name in brackets may hold spaces and brackets


def is_alive(process: Process) -> bool:
    """Whether any thread of exactly this process still runs.

    Raises OSError: that cannot be found out.
    """
    state, ticks = _state(process.pid)
    return ticks == process.start_ticks and not (state == "Z" and _is_over(process.pid))


def is_itself(process: Process) -> bool:
    """Whether the main thread of exactly this process runs: without it an agent serves nobody.

    Raises OSError: that cannot be found out.
    """
    return start_ticks(process.pid) == process.start_ticks


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The pid and uid that the kernel noted when the peer connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


@dataclass
class _Watched:
    pidfd: int
    waiters: dict[int, Callable[[Process], None]] = field(default_factory=dict)


class ProcessWatch:
    """Proof of death, by pidfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[Process, _Watched] = {}
        self._next_ticket = 0

    def identify(self, connection: socket.socket) -> Peer:
        """Identify the peer of a connection.

        Raises:
            ConnectionViolation: it died in the meantime, or cannot be identified.
            OSError: the agent has no descriptor left to find out.
        """
        pid, uid = peer_of(connection)
        ticks = _start_ticks_of_peer(connection, pid)
        if ticks is None:
            raise ConnectionViolation(f"cannot identify the peer: process {pid} is gone")
        return Peer(Process(pid, ticks), uid)

    def on_death(self, process: Process, callback: Callable[[Process], None]) -> int:
        """Call back once when the process is dead (soon, if it already is); returns a ticket.

        Raises OSError: it cannot be watched.
        """
        self._next_ticket += 1
        ticket = self._next_ticket
        watched = self._watched.get(process)
        if watched is None:
            pidfd = _open(process)
            if pidfd is None:
                self._loop.call_soon(callback, process)
                return ticket
            watched = self._watched[process] = _Watched(pidfd)
            self._loop.add_reader(pidfd, self._died, process)
        watched.waiters[ticket] = callback
        return ticket

    def forget(self, process: Process, ticket: int) -> None:
        """Withdraw a callback."""
        watched = self._watched.get(process)
        if watched is None:
            return
        watched.waiters.pop(ticket, None)
        if not watched.waiters:
            self._close(process)

    def kill(self, process: Process) -> bool:
        """Send SIGKILL to exactly this process; returns whether it still ran. Raises OSError."""
        watched = self._watched.get(process)
        pidfd = watched.pidfd if watched is not None else _open(process)
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            if watched is None:
                os.close(pidfd)
        return True

    def close(self) -> None:
        """Stop watching everything."""
        for process in list(self._watched):
            self._close(process)

    def _died(self, process: Process) -> None:
        watched = self._watched[process]
        if not _has_ended(watched.pidfd):
            return
        waiters = list(watched.waiters.values())
        self._close(process)
        for callback in waiters:  # what fails at one keeps none of the others
            attempt("deaths", partial(callback, process))

    def _close(self, process: Process) -> None:
        watched = self._watched.pop(process)
        self._loop.remove_reader(watched.pidfd)
        os.close(watched.pidfd)


def _start_ticks_of_peer(connection: socket.socket, pid: int) -> int | None:
    """When the peer, which had this pid as it connected, started; None if it is gone.

    Raises:
        ConnectionViolation: the kernel cannot tell, because it is gone or for another reason.
    """
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # before Linux 6.5
            return _state(pid)[1]
        raise ConnectionViolation(
            f"cannot identify the peer: process {pid}: {error.strerror}"
        ) from error
    try:
        _, ticks = _state(pid)
        return None if _has_ended(pidfd) else ticks  # only now: until then the pid was the peer's
    finally:
        os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    """Whether the process is dead. Not by select(2): an agent has thousands of descriptors."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _open(process: Process) -> int | None:
    """A pidfd of exactly this process, None if it is gone. Raises OSError: none is to be had.

    One whose main thread has ended is not gone: other threads of it may still have its memory and
    files. Its pidfd says when the last one has ended.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    try:
        _, ticks = _state(process.pid)  # only now: the pidfd keeps whatever it is from being reused
    except OSError:
        os.close(pidfd)
        raise
    if ticks == process.start_ticks and not _has_ended(pidfd):
        return pidfd
    os.close(pidfd)
    return None
