"""The cached lease: a client's next jobs begin and end without the agent, as a futex is locked.

The agent leaves the lease of a device to the next jobs of one client, of which it knows that they
need nothing else. It says so in a file of 16 bytes that is the client's own, and which the client
has only for reading: up to which job, and with which arena. The client *takes* the lease by a
shared `flock` on that file followed by a look into it, and gives it back by unlocking. The agent
*closes* it by writing first and trying an exclusive `flock` then.

* *One of the two.* Both locks are decided under one lock of the kernel. If the agent's comes first,
  the client's look comes after the agent's writing: it finds the lease closed. If the client's
  comes first, the agent's fails, and it knows that the client may run: it waits for JOB_RETURNED,
  or for JOB_BEGIN, which says that what was found was closed. A client cannot take it again
  meanwhile.
* *Told late.* To wake the agent costs a short job more than all the rest. So a client that has
  unlocked looks into the file: only if it says that the agent waits does JOB_RETURNED go out at
  once; else with the next message, or some milliseconds later. The agent had written before its
  lock failed, so what it waits for is not told late.
* *What is no job.* A program's work outside its jobs, taken or granted, goes on until the program
  is seen to be idle, or the file says that others wait: then it ends as soon as the GPU is done.
* *A client that lies.* It has the lock and no way to write. With the lock it can do what it can do
  without, never end a job. One that unlocks and goes on is one that sends JOB_END and goes on. The
  agent maps nothing, so that a client that is root in its pod and reopens the file for writing
  cannot make it fault; what it writes there or cuts off is about itself. No other client has it.
* *Deaths.* The kernel unlocks what a process had. After the death of an agent the file stays,
  closed for all clients but one. The next agent closes all, before it does anything else. A client
  that still has the lock was inside a job: it is noted in the lease's mark as any other
  (`recovery`). An idle one is not waited for. A fork's child has the same open file, and closes it.
* *Bounded.* A client may be no more than `_AHEAD` jobs ahead of what the agent has counted, which
  are as many as fit between two looks of its monitor if they take a millisecond; else it asks. So
  jobs shorter than the agent's counting do not fill its event loop.

What admission proved stays true: `leases` treats a lease that is taken as one held by a job that is
not preemptible, which is what only such clients' jobs are, and which it may hold until one job has
ended. Another's request that the agent has not read yet is overtaken by it as it is by a JOB_BEGIN
that was read before; however many jobs begin while the agent is busy, when the request is read at
most one of them is under way: the one later deadline that non-preemptive scheduling charges.

Invariant: while its file says that it is open the lease is the `LeaseManager`'s `opened`, and
nobody but its client holds it; it is granted to somebody else only after `close` returned true, or
the client said that it does not have it, or its connection is gone.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import stat
import struct
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from tierline_agent.devices.memfd import reopen
from tierline_agent.processes.identity import Process, is_alive
from tierline_agent.processes.state import LeaseMark
from tierline_agent.processes.state_files import make_folder

DEVICE_KIND = "cuda"
"""Where clients take cached leases: on `cpu` the end of a job is waited for anyway."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.\d+", re.ASCII)
_TERMS = struct.Struct("<QII")
_AHEAD = 8
_LATEST_JOB = (1 << 64) - 1
_numbers = itertools.count()


class _State(IntEnum):
    """The last word of the file."""

    CLOSED = 0
    OPEN = 1
    WANTED = 2
    """Closed, and others wait for what the client may have taken before, or was granted."""


class CachedLease:
    """The lease of a device as it is left open to one client."""

    def __init__(self, folder: Path, token: int, process: Process) -> None:
        """Make the file, closed. Raises OSError."""
        name = f"{token}.{process.pid}.{process.start_ticks}.{next(_numbers)}"
        self._path = folder / name
        self._descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        self._arena = 0
        self._says(0, _State.CLOSED)

    def export(self) -> int:
        """Return a descriptor for reading that the caller owns. Raises OSError."""
        return reopen(self._descriptor, os.O_RDONLY)

    def open(self, job: int, arena: int) -> bool:
        """Leave the lease to the jobs after this one; False if its client has the lock."""
        if not _lock(self._descriptor):
            return False
        self._arena = arena
        return self._says(job + _AHEAD, _State.OPEN) and self._unlock()

    def counted(self, job: int) -> bool:
        """A job that took the lease is over: leave it to the next ones; False if that fails."""
        return self._says(job + _AHEAD, _State.OPEN)

    def close(self) -> bool:
        """Take the lease back; False if the client holds it, and will say when it has ended."""
        written = self._says(0, _State.WANTED)
        free = _lock(self._descriptor)
        if free and written and self._says(0, _State.CLOSED):
            self._unlock()  # else the lock alone keeps the client out
        return free

    def say_wanted(self) -> None:
        """Others wait for the device, which its client was granted; it is closed."""
        self._says(0, _State.WANTED)

    def remove(self) -> None:
        """The client is gone."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)

    def _says(self, last_job: int, state: _State) -> bool:
        """Write; false if that fails, as it can after the client has cut the file off."""
        terms = _TERMS.pack(min(last_job, _LATEST_JOB), self._arena, state)
        try:
            return os.pwrite(self._descriptor, terms, 0) == len(terms)
        except OSError as failure:
            _log.warning("cannot write %s: %s", self._path, failure)
            return False

    def _unlock(self) -> bool:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return True


def cached_leases(run_dir: Path, unit: str) -> Path:
    """The folder of the cached leases of a device."""
    return run_dir / f"leases-{unit}"


def close_all(folder: Path, mark: LeaseMark) -> None:
    """Close what an earlier agent left open, and note in `mark` which client is inside a job by it.

    Raises OSError.
    """
    make_folder(folder, 0o700)
    for path in folder.iterdir():
        client = _client_of(path)
        if client is None:
            _log.warning("%s is no lease, and stays as it is", path)
            continue
        taker = _close_of_before(path, *client)
        held = mark.read()
        # If another holder lives it is a liar: no lease is opened after another client's job.
        if taker is not None and (held is None or not is_alive(held[1])):
            mark.set(*taker)
        path.unlink()


def _client_of(path: Path) -> tuple[int, Process] | None:
    """Token and process of the client whose lease this is; None if it is none."""
    name = _NAME.fullmatch(path.name)
    if name is None or not stat.S_ISREG(path.lstat().st_mode):
        return None
    token, pid, ticks = map(int, name.groups())
    return (token, Process(pid, ticks)) if max(token, pid, ticks) < 1 << 63 else None


def _close_of_before(path: Path, token: int, process: Process) -> tuple[int, Process] | None:
    """Close a lease; returns token and process of a client that has taken it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except (
        BlockingIOError
    ):  # its client has put a lease of the kernel's on it, to hide what it says
        return (token, process) if is_alive(process) else None
    try:
        said = os.pread(descriptor, _TERMS.size, 0)
        opened = len(said) == _TERMS.size and _TERMS.unpack(said)[2] != _State.CLOSED
        with suppress(OSError):  # only of a file that its client cut off
            os.pwrite(descriptor, bytes(_TERMS.size), 0)
        taken = opened and is_alive(process) and not _lock(descriptor)
    finally:
        os.close(descriptor)
    return (token, process) if taken else None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # BlockingIOError, or the kernel has no memory for it
        return False
    return True
