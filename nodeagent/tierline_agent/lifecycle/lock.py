"""The lock of a run directory: one agent serves it, and what is left of a dead one counts for none.

The lock is the kernel's (`flock`), and names the process that has it: pid, start time and the
namespace in which the pid counts. It counts while that process runs. The kernel alone would count
it longer: a killed process keeps all its files while one of its threads waits in the kernel for
what cannot be killed, as in the close of a FUSE file whose server does not answer. So an agent that
finds the lock held by a process whose main thread has ended makes a new file, locks that, and
renames it into place.

Each process takes the lock under a second one, which is held for as long as it takes to
look, to write and to rename: two cannot both find the owner dead, nor one the owner dead while
another gets what that gives back. A process that has it has no file of a client's yet, whose
closing could keep it. The second lock is that of the folder: a full disk has room for it.

A process of which nothing is known (it noted nothing, or in another namespace of pids) lives.

What else a dead agent may keep: the locks of its tiers, which are looked at in the same way
(`tiers.possession`), and, of a block device, that no file system is mounted on it. Its sockets in
files are replaced. Its metrics port and the memory that it has on a GPU are taken: the sentence
that says so names them. Its clients are not told of its death while it keeps their connections.
So it is prevented where it can be: of descriptors that a client sends and that nobody expects none
is closed (`transport.closing`).

Invariant: of those that run, at most one has the lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tierline_agent.errors import AlreadyRunning
from tierline_agent.processes.identity import Process, ProcessWatch, is_itself, start_ticks
from tierline_agent.processes.state_files import open_state

_log = logging.getLogger(__name__)
_LOOK_S: Final = 0.01
REMAINS_S: Final = 10.0
"""How long a dead process is waited for whose threads do not end: to unpin much memory takes some
seconds, and what it had of a GPU is free only with the last thread."""
_NOTE_BYTES: Final = 64


class AgentLock:
    """The lock of a run directory, and the process that had it before."""

    def __init__(self, run_dir: Path) -> None:
        """Take it if it is free: `held` says so. Raises OSError."""
        self.path = run_dir / "agent.lock"
        self.held = False
        self._watch = ProcessWatch(asyncio.get_running_loop())
        self._gone: dict[Process, asyncio.Event] = {}
        """Of each process that was seen to hold it, whether that is gone."""
        self._own = Process(os.getpid(), start_ticks(os.getpid()) or 0)
        self._namespace = str(Path("/proc/self/ns/pid").readlink())
        self._descriptor = -1
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Hold it to the end of the block."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self.close()

    def close(self) -> None:
        """Give it back, if it is held."""
        self._watch.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def refuse(self) -> None:
        """Raise AlreadyRunning unless it is held."""
        if not self.held:
            raise AlreadyRunning(
                f"cannot serve {self.path.parent}: another agent does (it holds {self.path}); "
                "stop it or choose another run_dir"
            )

    async def wait(self, looked: Callable[[], Awaitable[None]]) -> None:
        """Wait until it is held; `looked` is called all the while."""
        while not self.held:
            await looked()
            await asyncio.sleep(_LOOK_S)
            self._take()

    async def alone(self) -> None:
        """Wait until every process that was seen to hold it is gone, or dead for long."""
        for process, gone in self._gone.items():
            while not gone.is_set() and not await self._is_past(process, gone):
                pass
        _log.info("no process of an agent before is waited for")

    async def _is_past(self, process: Process, gone: asyncio.Event) -> bool:
        """Whether the process is dead, after a wait for the end of its threads."""
        was_dead = not is_itself(process)
        with suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), REMAINS_S)
        if gone.is_set() or not was_dead:
            return gone.is_set()
        _log.warning(
            "the agent before (process %d) is dead, and a thread of it does not end; going on "
            "without: it keeps the connections of its clients, its memory and its metrics port; "
            "/proc/%d/task/*/wchan says for what it waits",
            *(process.pid, process.pid),
        )
        return True

    def _take(self) -> None:
        with self._alone_in_taking() as alone:
            if not alone:
                return  # the process that takes it now gets it or finds that it is held
            if self._descriptor < 0:
                self._descriptor = _open(self.path)
            self.held = _lock(self._descriptor) and self._is_in_place()
            if not self.held and not self._is_in_place():  # another has taken it over
                os.close(self._descriptor)
                self._descriptor = -1
                return
            noted = self._noted()
            self._look_after(noted)
            if not self.held and noted is not None and not is_itself(noted):
                self._take_over(noted)
            if self.held:
                self._note(self._descriptor)

    def _take_over(self, dead: Process) -> None:
        """Put a new lock in the place of one that a dead process keeps."""
        new = self.path.with_name(f"{self.path.name}.new")
        new.unlink(missing_ok=True)
        descriptor = _open(new)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else has it open
            self._note(descriptor)
            new.rename(self.path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self.held = descriptor, True
        _log.warning(
            "the agent before (process %d) is dead and keeps its lock; taking over", dead.pid
        )

    @contextmanager
    def _alone_in_taking(self) -> Iterator[bool]:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield _lock(descriptor)
        finally:
            os.close(descriptor)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _look_after(self, noted: Process | None) -> None:
        """Know when a process has ended that noted itself."""
        if noted is not None and noted != self._own and noted not in self._gone:
            gone = self._gone[noted] = asyncio.Event()
            self._watch.on_death(noted, lambda _: gone.set())

    def _note(self, descriptor: int) -> None:
        own = f"{self._own.pid} {self._own.start_ticks} {self._namespace}"
        # of one length and in place: it takes no room on a disk that is full
        try:
            os.pwrite(descriptor, own.encode().ljust(_NOTE_BYTES), 0)
        except OSError as failure:
            raise OSError(failure.errno, failure.strerror, str(self.path)) from failure

    def _noted(self) -> Process | None:
        """The process that noted itself; None if none did that could be looked at."""
        try:
            pid, ticks, namespace = os.pread(self._descriptor, _NOTE_BYTES, 0).decode().split()
            return Process(int(pid), int(ticks)) if namespace == self._namespace else None
        except ValueError:
            return None


def _open(path: Path) -> int:
    return open_state(path, os.O_RDWR | os.O_CREAT)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
