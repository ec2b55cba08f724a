"""Shared memory with a descriptor: made, checked, mapped.

Every memfd here has mode 0600 and is sealed against changes of its size, so that a mapping can
never fault because a peer truncated the file. Read-only copies for clients are *reopened*, not
duplicated: a duplicate would share the writable open file.

A descriptor for reading protects from nothing by itself: a process that is the agent's own user, as
root of a pod is, opens the file again for writing. So what keeps its content is lent `sealed`:
nobody can write to it any more, in any way, but by the mapping that the agent has by then. That
mapping ends with the agent; the next one can only read what a client brings back. Ring slots are
not sealed: the next agent has to write to them.

Opening a file waits for a process that has a lease on it (F_SETLEASE), up to 45 s. A client that is
the agent's own user could take one on what it was lent. So the agent's own descriptor is a reopened
one, too: unlike the first one of a memfd the kernel counts it as a writer, and gives no lease as
long as there is one. What a client brings back, after the agent that wrote was killed, is opened
without waiting.

Invariant: an object owns exactly one descriptor and one mapping, and drops both in `close`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat

from tierline_agent.devices import hugepages
from tierline_agent.devices.base import Identity
from tierline_agent.errors import DescriptorRefused
from tierline_agent.tiers import memory

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FUTURE_WRITE_SEAL = 0x10  # F_SEAL_FUTURE_WRITE, for which Python has no name: Linux 5.1
_WRITE_SEALS = fcntl.F_SEAL_WRITE | _FUTURE_WRITE_SEAL
_READING_SEALS = _FUTURE_WRITE_SEAL | fcntl.F_SEAL_SEAL


class SharedMemory:
    """A sealed memfd that is mapped in the agent; writable, unless it was sealed before."""

    offered = False  # its identity tells what an earlier agent made

    def __init__(
        self, descriptor: int, size_bytes: int, *, adopted: bool = False, writable: bool = True
    ) -> None:
        """Take over `descriptor`, also if this raises OSError."""
        self._descriptor = descriptor
        self._adopted = adopted
        self._lent_sealed: bool | None = None
        self.writable = writable
        self._collapsed = False
        self._touched = False
        self.size_bytes = size_bytes
        try:
            about = os.fstat(descriptor)
            self.identity = Identity(about.st_dev, about.st_ino)
            protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
            self._map = mmap.mmap(descriptor, size_bytes, prot=protection)
        except BaseException:
            self._close_descriptor()
            raise
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, name: str, size_bytes: int) -> SharedMemory:
        """Make new memory of zeros."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            own = reopen(descriptor, os.O_RDWR)
        finally:
            os.close(descriptor)
        return cls(own, size_bytes)

    @classmethod
    def adopt(
        cls, descriptor: int, size_bytes: int, what: str, *, to_read: bool = False
    ) -> SharedMemory:
        """Reopen what a client offers, writable; `descriptor` stays the caller's.

        With `to_read` it may be what an earlier agent has lent for reading, and nobody can write.

        Raises:
            DescriptorRefused: not a memfd of the agent's user with the size, mode and seals that
                `create` gives.
        """
        check(descriptor, size_bytes, what)
        writable = not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _WRITE_SEALS
        if not (writable or to_read):
            raise DescriptorRefused(f"cannot take {what} back: nobody can write to it")
        try:
            own = reopen(descriptor, os.O_RDWR if writable else os.O_RDONLY)
            return cls(own, size_bytes, adopted=True, writable=writable)
        except OSError as error:
            raise DescriptorRefused(f"cannot take {what} back: {error.strerror}") from error

    def address(self) -> int:
        """Where the mapping begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def export(self, *, writable: bool, sealed: bool = False) -> int:
        """Return a fresh descriptor that the caller owns.

        Memory is lent either sealed or not, from the first time on (`fits`).
        """
        if self._lent_sealed is None and not self._adopted:
            self._lent_sealed = sealed
            seals = _READING_SEALS if sealed else fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        return reopen(self._descriptor, os.O_RDWR if writable else os.O_RDONLY)

    def fits(self, *, sealed: bool) -> bool:
        """Whether the agent can fill it and a client be lent it, sealed or not.

        What a client has brought back does not: nobody knows which processes can write to it.
        """
        return not self._adopted and self._lent_sealed in (None, sealed)

    def populate(self) -> None:
        """Have all of it in memory now. Raises OSError: there is not so much."""
        os.posix_fallocate(self._descriptor, 0, self.size_bytes)

    def touch(self) -> None:
        """Have all of it in memory now, once, so that what is written into it does not fault."""
        if not self._touched:
            self._touched = True
            memory.touch(self.view)

    def use_huge_pages(self) -> None:
        """Ask for huge pages, once; all of it should have been written before."""
        if not self._collapsed:
            self._collapsed = True
            hugepages.collapse(self._descriptor, self.size_bytes)

    @property
    def mapped(self) -> bool:
        """Whether it is open."""
        return self._descriptor >= 0

    def close(self) -> None:
        """Close the descriptor and unmap; a view still in use keeps the mapping until dropped."""
        if self._descriptor < 0:
            return
        self._close_descriptor()
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def reopen(descriptor: int, mode: int) -> int:
    """Open the same file again, without waiting. Raises OSError, also if somebody has a lease."""
    return os.open(f"/proc/self/fd/{descriptor}", mode | os.O_CLOEXEC | os.O_NONBLOCK)


def check(descriptor: int, size_bytes: int, what: str) -> Identity:
    """Check that `descriptor` is a memfd as `SharedMemory.create` makes it.

    It may be any file of a client's. Its seals come first: the kernel says of anything but shared
    memory that it has none, without asking the program that serves the file, as `fstat`
    would.

    Raises:
        DescriptorRefused: it is not.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        about = os.fstat(descriptor)
    except OSError as error:
        raise DescriptorRefused(f"cannot take {what} back: not a memfd") from error
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise DescriptorRefused(f"cannot take {what} back: its size is not sealed")
    if about.st_size != size_bytes:
        raise DescriptorRefused(
            f"cannot take {what} back: it has {about.st_size} bytes instead of {size_bytes}"
        )
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != 0o600:
        raise DescriptorRefused(f"cannot take {what} back: the agent did not make it")
    return Identity(about.st_dev, about.st_ino)
