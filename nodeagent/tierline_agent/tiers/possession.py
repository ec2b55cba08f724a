"""Which process has a medium: one at a time, and one that is dead has none.

The lock is the kernel's (`flock` on the open file). It ends with the process, but not always when
the process dies: see `lifecycle.lock`. Only the kernel says which process has it, in /proc/locks;
if all of those are dead, a medium is taken without it. From then on a thread waits for the lock,
and a record lock (`fcntl`), of which the kernel tells the owner's pid, stands in for it: on the
first byte of the medium that no process has; those of processes that died in the same way are
passed over. A process that gets the lock looks for record locks, too.

A record lock is lost when the process closes the medium, opened a second time. That is done only
to change its size at the start, before it is opened for good.

A process whose pid cannot be seen from here lives.

Invariant: of the processes that run, at most one has a medium.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Final

from tierline_agent.processes.identity import start_ticks

_RECORD: Final = struct.Struct("hhqqi0q")
"""struct flock: type, whence, start, length (0: to the end of all), pid."""


def take(descriptor: int) -> bool:
    """Have the medium that is open as `descriptor`; False if another process does.

    Raises OSError: that cannot be found out.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not is_left_by_the_dead(descriptor) or not _stand_in(descriptor):
            return False
        waits = os.dup(descriptor)
        threading.Thread(target=_wait, args=(waits,), name="medium", daemon=True).start()
        return True
    return _is_free_from(descriptor, 0)


def is_left_by_the_dead(descriptor: int) -> bool:
    """Whether the medium is locked, and only by processes that are dead."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders = []
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        # "1: FLOCK  ADVISORY  WRITE 18987 fe:00:11322006 0 EOF"; "1: -> FLOCK ..." waits
        _, kind, _, _, pid, where, *_ = line.split()
        if (kind, where) == ("FLOCK", device):
            holders.append(int(pid))
    return bool(holders) and all(map(_is_dead, holders))


def _is_dead(pid: int) -> bool:
    return pid > 0 and start_ticks(pid) is None


def _stand_in(descriptor: int) -> bool:
    """Have the first byte that no dead process keeps."""
    byte = 0
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            found = _first_from(descriptor, byte)
            if found is not None and found[0] == byte:
                if not _is_dead(found[1]):
                    return False
                byte += 1
        else:
            return _is_free_from(descriptor, byte + 1)


def _is_free_from(descriptor: int, byte: int) -> bool:
    """Whether no process that runs has a record lock from this byte on."""
    while (found := _first_from(descriptor, byte)) is not None:
        byte, pid = found[0] + 1, found[1]
        if not _is_dead(pid):
            return False
    return True


def _first_from(descriptor: int, byte: int) -> tuple[int, int] | None:
    """The first byte that another process has locked, not before `byte`, and its pid."""
    asked = _RECORD.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 0, 0)
    kind, _, start, _, pid = _RECORD.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (max(byte, start), pid)


def _wait(descriptor: int) -> None:
    """Get the lock when the dead process is gone, for all descriptors of this opening."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)
