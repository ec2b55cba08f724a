"""The agent's memory of itself: small JSON files, replaced atomically, and the mark of the lease.

Invariant: a reader sees a file as it was before or after a write, never in between; also when the
agent dies in the middle, and for `write_json` the machine. What clients need to come back
(`BootFile`, `LeaseMark`) is written where the disk has room for it already: a disk that others fill
keeps nobody from coming back.
"""

from __future__ import annotations

import ctypes
import io
import json
import logging
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tierline_agent.processes.identity import Process
from tierline_agent.processes.state_files import open_state, put_aside, read_state

_log = logging.getLogger(__name__)
_MARK = struct.Struct("<QQQ")
_SIZE = struct.Struct("<H")
_MOST_TASK_BYTES = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def write_json(path: Path, value: object) -> None:
    """Replace the file at `path`, and wait until that survives a loss of power. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = open_state(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            # `dump` goes through the value in Python, ten times as long, in the event loop
            file.write(json.dumps(value, separators=(",", ":")))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as failure:  # a write that fails does not say of what
        raise OSError(failure.errno, failure.strerror, str(path)) from failure
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> Any:
    """The value in the file at `path`; None if there is none.

    What is there and holds no JSON is put aside, and counts as none. Raises OSError.
    """
    try:
        return json.loads(read_state(path).decode())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        put_aside(path, "a file that holds no JSON")
        return None


class Spare:
    """Two files that take turns: a value is written into the spare one, which then changes places.

    Both are of one size, which is room for twice the value as long as the disk has it; what follows
    the value is blank. So a value of at most that size needs no more of the disk. (Nor does it of
    tmpfs, ext4 or xfs; a file system that copies what is written does.)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(path.name + ".new")

    def replace(self, content: bytes) -> None:
        """Replace what is in the file at the path. Raises OSError."""
        try:
            self._fill(content)
            if not _exchange(self._spare, self._path):
                self._spare.replace(self._path)
        except OSError as failure:  # a write that fails does not say of what
            raise OSError(failure.errno, failure.strerror, str(self._path)) from failure
        with suppress(OSError):  # the disk has no room for it now
            self._open(2 * len(content)).close()

    def _fill(self, content: bytes) -> None:
        with self._open(2 * len(content)) as file:
            left = memoryview(content.ljust(os.fstat(file.fileno()).st_size))
            while left:
                left = left[file.write(left) :]

    def _open(self, room_bytes: int) -> io.FileIO:
        """The spare file, with so much room or what the disk has for it. Raises OSError."""
        file = io.FileIO(open_state(self._spare, os.O_WRONLY | os.O_CREAT), "w")
        most = _LEAST_ROOM
        while most < room_bytes:
            most *= 2
        if os.fstat(file.fileno()).st_size < most:
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, most)
        return file


_LEAST_ROOM = 32 << 10


_renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
_HERE, _EXCHANGE = -100, 2


def _exchange(one: Path, other: Path) -> bool:
    """Let two files change places at once; False if one is missing or the file system cannot."""
    return bool(_renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def boot_id() -> str:
    """Identifies this boot of the machine: what lives in memory is lost with it."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


class BootFile:
    """A JSON file that counts only within this boot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = Spare(path)
        self._boot = boot_id()
        self._waiting: list[object] = []
        """The value that could not be written."""
        self.was_odd = False
        """Something was there when it was read, and nobody can say what it said."""

    def write(self, value: object) -> None:
        """Replace the value. Raises OSError."""
        text = json.dumps({"boot": self._boot, "value": value}, separators=(",", ":"))
        self._spare.replace(text.encode())

    def note(self, value: object) -> None:
        """Replace the value, now or, if that fails, by a later `retry`.

        A disk without room for it keeps nobody from his work. It costs what the value is for: if
        the agent is killed meanwhile, the next one does not know of those that came last, and
        refuses them.
        """
        failed_before = self.failed
        self._waiting = [value]
        try:
            self.write(value)
        except OSError as failure:
            if not failed_before:
                _log.error("cannot write %s, it is tried again: %s", self._path, failure)
        else:
            self._waiting = []

    @property
    def failed(self) -> bool:
        """Whether the file does not say what it should."""
        return bool(self._waiting)

    def retry(self) -> None:
        """Write what could not be written."""
        for value in self._waiting:
            self.note(value)

    def read(self, check: Callable[[Any], Any]) -> Any:
        """The value as `check` returns it; None if there is none of this boot or it is odd."""
        was_there = os.path.lexists(self._path)
        held = read_json(self._path)
        if isinstance(held, dict) and isinstance(held.get("boot"), str):
            if held["boot"] != self._boot:
                return None
            with suppress(TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
                return check(held.get("value"))
        self.was_odd = was_there
        return None


class LeaseMark:
    """The holder of the lease, in a mapped file: written at every grant, without a system call.

    After a SIGKILL of the agent the next one reads here whose job may still compute from the ring.
    The token is written last and cleared first, so that a mark is whole or absent.
    """

    def __init__(self, path: Path) -> None:
        descriptor = open_state(path, os.O_RDWR | os.O_CREAT)
        try:
            # not a hole: on a full disk the first mark would end the agent
            os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        except OSError as failure:
            os.close(descriptor)
            raise OSError(failure.errno, failure.strerror, str(path)) from failure
        try:
            self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)

    def read(self) -> tuple[int, Process] | None:
        """The holder's reattach token and process."""
        token, pid, ticks = _MARK.unpack_from(self._map)
        return (token, Process(pid, ticks)) if token else None

    @property
    def task(self) -> str:
        """The holder's task; "" if the agent that made the mark did not know it."""
        (size,) = _SIZE.unpack_from(self._map, _MARK.size)
        begin = _MARK.size + _SIZE.size
        return self._map[begin : begin + min(size, _MOST_TASK_BYTES)].decode(errors="replace")

    def set(self, token: int, process: Process, task: str = "") -> None:
        """Note the holder."""
        name = task.encode()[:_MOST_TASK_BYTES]
        struct.pack_into("<Q", self._map, 0, 0)
        _SIZE.pack_into(self._map, _MARK.size, len(name))
        begin = _MARK.size + _SIZE.size
        self._map[begin : begin + len(name)] = name
        _MARK.pack_into(self._map, 0, 0, process.pid, process.start_ticks)
        struct.pack_into("<Q", self._map, 0, token)

    def clear(self) -> None:
        """Nobody holds the lease."""
        struct.pack_into("<Q", self._map, 0, 0)

    def close(self) -> None:
        """Unmap the file, which stays."""
        self._map.close()
