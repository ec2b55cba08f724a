"""The agent's memory of itself: small JSON files, replaced atomically, and the mark of the lease.

Invariant: a reader sees a file as it was before or after a write, never in between; also when the
agent, and for `durable` files the machine, dies in the middle.
"""

from __future__ import annotations

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
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def write_json(path: Path, value: object, *, durable: bool) -> None:
    """Replace the file at `path`; `durable` waits until that survives a loss of power."""
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = open_state(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            # `dump` goes through the value in Python, ten times as long, in the event loop
            file.write(json.dumps(value, separators=(",", ":")))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as failure:  # a write that fails does not say of what
        raise OSError(failure.errno, failure.strerror, str(path)) from failure
    if durable:
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


def boot_id() -> str:
    """Identifies this boot of the machine: what lives in memory is lost with it."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


class BootFile:
    """A JSON file that counts only within this boot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._waiting: list[object] = []
        """The value that could not be written."""
        self.was_odd = False
        """Something was there when it was read, and nobody can say what it said."""

    def write(self, value: object) -> None:
        """Replace the value. Raises OSError."""
        write_json(self._path, {"boot": self._boot, "value": value}, durable=False)

    def note(self, value: object) -> None:
        """Replace the value, now or, if that fails, by a later `retry`.

        A full disk keeps nobody from his work. It costs what the value is for: if the agent is
        killed meanwhile, the next one does not know of those that came last, and refuses them.
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

    def set(self, token: int, process: Process) -> None:
        """Note the holder."""
        _MARK.pack_into(self._map, 0, 0, process.pid, process.start_ticks)
        struct.pack_into("<Q", self._map, 0, token)

    def clear(self) -> None:
        """Nobody holds the lease."""
        struct.pack_into("<Q", self._map, 0, 0)

    def close(self) -> None:
        """Unmap the file, which stays."""
        self._map.close()
