"""Opening a state file or folder: what lies at its path is ours, or it is put aside.

Somebody with the folder, a full disk or a restored backup may leave anything there: a pipe, in
which opening waits, a device that never ends, a link, a folder, a file of a terabyte. What is no
regular file of the agent's own user, or is too large, is renamed to `NAME.odd`, with one warning,
and counts as absent: the agent starts, and an administrator finds what it was. So is what stands in
the place of a folder, a link to another one above all: what lies there is somebody else's. Nothing
but what stands at the path itself is ever renamed.

Invariant: no call here waits, and none reads more than `MOST_BYTES`.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)
MOST_BYTES: Final = 64 << 20
"""As much as the plans of all tasks that a node may have."""
_NOT_A_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_NAMES: Final = 8
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
}


def open_state(path: Path, flags: int) -> int:
    """A descriptor of the regular file at `path`.

    Raises:
        FileNotFoundError: there is none; what is there instead has been put aside, and `flags` do
            not say to make one.
        OSError: it cannot be opened, or not be put aside.
    """
    safe = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if (kind := _kind_of(path)) is not None:
        put_aside(path, kind)
    try:
        return os.open(path, safe, 0o600)
    except BlockingIOError:
        put_aside(path, "a file on which a process has a lease of the kernel's")
        return os.open(path, safe, 0o600)
    except OSError as failure:
        if failure.errno in _NOT_A_FILE:  # put there after it was looked at
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from failure
        raise


def read_state(path: Path) -> bytes:
    """All of the file at `path`. Raises as `open_state`."""
    with os.fdopen(open_state(path, os.O_RDONLY), "rb") as file:
        return file.read(MOST_BYTES)


def make_folder(path: Path, mode: int) -> None:
    """Make a folder and those above it, if there is none. Raises OSError."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        path.mkdir(mode, parents=True)
        return
    if not stat.S_ISDIR(status.st_mode):
        put_aside(path, _kind_of(path) or "a file")
    elif status.st_uid != os.geteuid():
        put_aside(path, f"a folder of user {status.st_uid}")
    path.mkdir(mode, exist_ok=True)


def put_aside(path: Path, kind: str) -> None:
    """Rename what is at `path`. Raises OSError: it cannot be."""
    for number in range(_NAMES):
        aside = path.with_name(f"{path.name}.odd{number or ''}")
        with suppress(OSError):  # a folder that is not empty has that name
            path.rename(aside)
            _log.warning("%s is %s, which no agent made; put aside as %s", path, kind, aside.name)
            return
    raise OSError(errno.EEXIST, f"it is {kind}, and cannot be put aside; remove it", str(path))


def _kind_of(path: Path) -> str | None:
    """The kind of thing at that path, in words, if it is no file of ours. Raises OSError."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
    if status.st_uid != os.geteuid():
        return f"a file of user {status.st_uid}"
    if status.st_size > MOST_BYTES:
        return f"a file of {status.st_size} bytes"
    return None
