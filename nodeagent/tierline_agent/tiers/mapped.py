"""Media that are memory: a tmpfs file (dram) or a devdax device (pmem), mapped shared for life.

What memory a devdax is, persistent or not, sysfs tells (`dax.py`).

Copies are plain loads and stores. A plain file on a disk is not mapped, although it could be: a
read error under a mapping arrives as SIGBUS and would end the agent; `files.py` reads it with
system calls that return errors instead.

devdax (Documentation/driver-api/nvdimm, drivers/dax/device.c): its size and alignment stand only in
sysfs (st_size is 0); a mapping that is private, or no multiple of the alignment, gives EINVAL; one
beyond the end succeeds and kills with SIGBUS at the first touch, so the size is checked here before
mapping. read, write, fsync and msync all give EINVAL: durability on it is a matter of flushing CPU
cache lines, for which Python has no instruction. Hence `persist`: a function (address, size in
bytes) that writes the lines back, from native code. Without it the medium says so in `mode` and
`durability`, except where the platform's caches are themselves inside the persistence domain
(eADR), when there is nothing to flush. A write that did not reach the medium is found like any
torn one: the record's checksum or the content's digest does not match.

To map takes seconds for hundreds of gigabytes, and so does what devices do with a mapping. So a
medium may be mapped before it is free (`media.map_early`), and is *claimed* when it was opened.

Invariant: a medium that was not claimed is another's: nobody reads or writes it through this one.

What it cannot do: a memory error under a mapping (a bad line of a DIMM) arrives as SIGBUS too, and
ends the agent.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tierline_agent.tiers import dax, memory
from tierline_agent.tiers.errors import MediumUnusable, unusable
from tierline_agent.tiers.medium import Durability, Medium, blocks

Persist = Callable[[int, int], None]

_SYSFS_CHARACTER_DEVICES: Final = Path("/sys/dev/char")


class MappedMedium(Medium):
    """A shared mapping of `size_bytes` bytes of `descriptor`, which it owns from here on.

    `populate`: all of it is mapped at once, page by page, else as it is touched.
    """

    def __init__(
        self,
        kind: str,
        path: str,
        descriptor: int,
        size_bytes: int,
        *,
        mode: str,
        durability: Durability,
        persist: Persist | None,
        populate: bool,
        volatile: bool = False,
    ) -> None:
        self.volatile = volatile
        self.kind, self.path, self.size_bytes = kind, path, size_bytes
        self.mode, self.durability = mode, durability
        self._persist = persist
        # Faults at 4 KiB would halve the first pass's bandwidth, which admission believes.
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
        try:
            self._map = mmap.mmap(descriptor, size_bytes, flags)
        except OSError as error:
            raise unusable(f"map the {kind} tier", path, error) from error
        self._descriptor = descriptor
        self._view = memoryview(self._map)
        self._address = memory.address_of(self._view)

    def claim(self, descriptor: int, size_bytes: int) -> bool:
        """Be opened as `descriptor`, which it owns then, if this is of the same file and size."""
        if size_bytes != self.size_bytes or not _same(os.fstat(descriptor), self._descriptor):
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        return True

    def is_in_place(self) -> bool:
        """Whether its path still leads to what is mapped."""
        try:
            return _same(Path(self.path).stat(), self._descriptor)
        except OSError:
            return False

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """The bytes where they lie, not to be written to."""
        self.check_range(offset, size_bytes)
        return self._view[offset : offset + size_bytes].toreadonly()

    def map_again(self) -> mmap.mmap:
        """Another mapping of all of it, for a device to pin. Raises MediumUnusable.

        Each device pins a mapping of its own, so that one that loses its context, and with it all
        that was pinned in it, takes nothing from the others.
        """
        try:
            return mmap.mmap(self._descriptor, self.size_bytes, mmap.MAP_SHARED)
        except OSError as error:
            raise unusable(f"map the {self.kind} tier for a device", self.path, error) from error

    def read_into(self, offset: int, target: memoryview) -> None:
        """Load from the mapping."""
        self.check_range(offset, target.nbytes)
        memory.copy_out(target, self._address + offset)

    def write_from(self, offset: int, source: memoryview) -> None:
        """Store to the mapping."""
        size_bytes = source.nbytes
        padding = blocks(size_bytes) - size_bytes
        self.check_range(offset, size_bytes + padding)
        memory.copy(self._address + offset, source)
        if padding:
            end = offset + size_bytes
            self._view[end : end + padding] = bytes(padding)

    def flush(self, offset: int, size_bytes: int) -> None:
        """Write cache lines back, if there is a means and a need."""
        self.check_range(offset, size_bytes)
        if self._persist is not None:
            self._persist(self._address + offset, size_bytes)

    def close(self) -> None:
        """Unmap and close."""
        if self._descriptor >= 0:
            self._view.release()
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1


def map_tmpfs(
    kind: str, path: str, descriptor: int, size_bytes: int, *, populate: bool
) -> MappedMedium:
    """Map a preallocated tmpfs file: memory that outlives the agent, not the machine."""
    return MappedMedium(
        kind,
        path,
        descriptor,
        size_bytes,
        mode="mapped tmpfs",
        durability=Durability.PROCESS,
        persist=None,
        populate=populate,
    )


def map_devdax(
    kind: str,
    path: str,
    descriptor: int,
    size_bytes: int,
    persist: Persist | None,
    early: MappedMedium | None = None,
) -> MappedMedium:
    """Map `size_bytes` bytes (0: all) of a devdax character device, or claim an early mapping.

    Raises MediumUnusable.
    """
    sysfs = _sysfs_folder(descriptor)
    if (sysfs / "subsystem").resolve().name != "dax":
        raise MediumUnusable(
            f"cannot use {path} as the {kind} tier: it is a character device but no devdax; "
            "configure a /dev/daxX.Y or a file"
        )
    try:
        found = dax.look(sysfs.resolve())
    except (OSError, ValueError) as error:
        raise MediumUnusable(
            f"cannot learn the size of the {kind} tier {path} from {sysfs}: {error}; "
            "the kernel must be 5.10 or newer, with /sys mounted"
        ) from error
    available, align = found.size_bytes, found.align_bytes
    wanted = size_bytes or available
    if wanted > available:
        raise MediumUnusable(
            f"cannot use {wanted} bytes of the {kind} tier {path}: it has {available}; "
            "configure a smaller size"
        )
    usable = wanted - wanted % align
    if usable == 0:
        raise MediumUnusable(
            f"cannot use {wanted} bytes of the {kind} tier {path}: "
            f"it is mapped in units of {align} bytes; configure at least that"
        )
    if early is not None and persist is None and early.claim(descriptor, usable):
        return early
    persist = None if found.volatile else persist
    return MappedMedium(
        kind,
        path,
        descriptor,
        usable,
        mode=found.mode(flushed=persist is not None),
        durability=found.durability(flushed=persist is not None),
        persist=persist,
        populate=False,
        volatile=found.volatile,
    )


def _same(found: os.stat_result, descriptor: int) -> bool:
    return os.path.samestat(found, os.fstat(descriptor))


def _sysfs_folder(descriptor: int) -> Path:
    device = os.fstat(descriptor).st_rdev
    return _SYSFS_CHARACTER_DEVICES / f"{os.major(device)}:{os.minor(device)}"
