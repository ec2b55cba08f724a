"""Opens a tier's medium: decides what a path is, claims it, and allocates it.

| path                     | dram         | pmem            | nvme                         |
|--------------------------|--------------|-----------------|------------------------------|
| file on tmpfs            | mapped       | mapped          | buffered (it has no drive)   |
| file on another system   | refused      | buffered        | O_DIRECT, else buffered      |
| devdax character device  | refused      | mapped          | refused                      |
| block device             | refused      | refused         | O_DIRECT                     |

What is not there is made, as a file; but not among device nodes, where it would pass for a device.

It does not look at what the medium holds (`volume.py`), unless that is less than a block: a store
is not, and a process that opens the medium sees it only when it was made longer.

Invariant: one process at a time has a medium (`possession`); others may have it mapped early. What
the kernel claims for a process (O_EXCL on a block device) ends with it. All blocks of a file are
allocated here, so that a write cannot run out of space later, nor a mapping end in SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final, Literal, get_args

from tierline_agent.tiers import memory, possession
from tierline_agent.tiers.dax import why_absent
from tierline_agent.tiers.errors import ForeignContent, MediumUnusable, unusable
from tierline_agent.tiers.files import FileMedium
from tierline_agent.tiers.mapped import MappedMedium, Persist, map_devdax, map_tmpfs
from tierline_agent.tiers.medium import BLOCK_BYTES, Durability, Medium

Kind = Literal["dram", "pmem", "nvme"]

_DEVICES: Final = Path("/dev")
_OF_DEVICES: Final = "devtmpfs"
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", _OF_DEVICES})


def open_medium(
    kind: Kind,
    path: str | Path,
    size_bytes: int = 0,
    *,
    persist: Persist | None = None,
    populate: bool = False,
    early: MappedMedium | None = None,
) -> Medium:
    """Open, lock and allocate the medium of a tier.

    `size_bytes` 0 means all there is: the existing file's size, the device's size. A file that
    does not exist is created (mode 0600), not among device nodes. `persist` writes cache lines back
    on a devdax, and `populate` maps all of a file on a tmpfs at once, see `mapped.py`. What was
    mapped `early` is claimed and returned if it is of this medium, and else left alone.
    Raises MediumUnusable (ForeignContent if a file too short for a store holds something) or
    NoSpace.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"a tier is one of {', '.join(get_args(Kind))}, not {kind!r}")
    path = str(path)
    descriptor = _open(kind, path)
    try:
        _lock(kind, path, descriptor)
        file_type = os.fstat(descriptor).st_mode
        if stat.S_ISREG(file_type):
            return _open_file(kind, path, descriptor, size_bytes, early, populate=populate)
        return _open_device(kind, path, descriptor, size_bytes, persist, early)
    except BaseException:
        os.close(descriptor)
        raise


def map_early(kind: Kind, path: str | Path, size_bytes: int = 0) -> MappedMedium | None:
    """Map the medium of a tier that another process may have, to be claimed by `open_medium`.

    Nothing is made, allocated, written or read. None if there is none yet that is memory and has
    the size that is asked for: what happens to it then, opening it says.
    """
    path = str(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        mapped = _map_early(kind, path, descriptor, size_bytes)
    except MediumUnusable:
        mapped = None
    except BaseException:
        os.close(descriptor)
        raise
    if mapped is None:
        os.close(descriptor)
    return mapped


def _map_early(kind: Kind, path: str, descriptor: int, size_bytes: int) -> MappedMedium | None:
    status = os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode) and kind == "pmem":
        return map_devdax(kind, path, descriptor, size_bytes, None)
    if not stat.S_ISREG(status.st_mode) or kind == "nvme" or status.st_uid != os.geteuid():
        return None
    usable = _usable(status, size_bytes)
    if usable != _usable(status, 0) or not usable or not _is_allocated(descriptor, usable):
        return None
    return map_tmpfs(kind, path, descriptor, usable, populate=True)


def _open_file(
    kind: Kind,
    path: str,
    descriptor: int,
    size_bytes: int,
    early: MappedMedium | None,
    *,
    populate: bool,
) -> Medium:
    in_memory = _file_system(descriptor) in _IN_MEMORY
    if kind == "dram" and not in_memory:
        raise MediumUnusable(
            f"cannot use {path} as the dram tier: it is not on a tmpfs; "
            "configure a file in /dev/shm or on another tmpfs"
        )
    size_bytes = _allocate(kind, path, descriptor, size_bytes)
    if in_memory and kind != "nvme":
        if early is not None and early.claim(descriptor, size_bytes):
            return early
        return map_tmpfs(kind, path, descriptor, size_bytes, populate=populate)
    return _as_file(kind, path, descriptor, size_bytes, may_be_direct=not in_memory)


def _open_device(
    kind: Kind,
    path: str,
    descriptor: int,
    size_bytes: int,
    persist: Persist | None,
    early: MappedMedium | None,
) -> Medium:
    file_type = os.fstat(descriptor).st_mode
    if stat.S_ISCHR(file_type) and kind == "pmem":
        return map_devdax(kind, path, descriptor, size_bytes, persist, early)
    if stat.S_ISBLK(file_type) and kind == "nvme":
        size_bytes = _block_device_size(kind, path, descriptor, size_bytes)
        return _as_file(kind, path, descriptor, size_bytes)
    raise MediumUnusable(
        f"cannot use {path} as the {kind} tier: it is neither a file nor a device for it; "
        "configure a file, a devdax device for pmem, or a block device for nvme"
    )


def _open(kind: str, path: str) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT
        if Path(path).is_block_device():
            return _open_drive(path)
        if Path(path).is_char_device():
            flags = os.O_RDWR
        elif not Path(path).exists() and _is_among_devices(path):
            reason = why_absent(path)
            raise MediumUnusable(
                f"cannot open the {kind} tier {path}: "
                + (
                    reason
                    or "there is no such device, and no file is made among devices; check the path"
                )
            )
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise unusable(f"open the {kind} tier", path, error) from error


def _open_drive(path: str) -> int:
    """Open a block device, which the kernel refuses while a file system is mounted on it.

    It is refused, too, while a dead process keeps it, so no file system is mounted then. Nothing
    but the agent's configuration keeps one from it once that process is gone. Raises OSError.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_EXCL)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        descriptor = os.open(path, os.O_RDWR)
        if possession.is_left_by_the_dead(descriptor):
            return descriptor
        os.close(descriptor)
        raise


def _is_among_devices(path: str) -> bool:
    """Whether a file made at `path` would lie where device nodes do.

    Containers have them on a tmpfs. What is mounted below /dev, as /dev/shm is, has none.
    """
    folder = Path(os.path.realpath(path)).parent
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        in_place = folder.is_relative_to(_DEVICES)
        return _file_system(descriptor) == _OF_DEVICES or (
            in_place and os.fstat(descriptor).st_dev == _DEVICES.stat().st_dev
        )
    finally:
        os.close(descriptor)


def _lock(kind: str, path: str, descriptor: int) -> None:
    if not possession.take(descriptor):
        raise MediumUnusable(
            f"cannot use {path} as the {kind} tier: another process has it; "
            "end the other agent or configure another path"
        )


def _file_system(descriptor: int) -> str:
    """Type of the file system an open file lies on, as the kernel names it; "" if unknown."""
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            mount = line.split()[1]
            break
    else:
        return ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # "36 35 98:0 /root /mount/point options [optional fields] - type source options"
        fields = line.split(" ")
        if fields[0] == mount:
            return fields[fields.index("-") + 1]
    return ""


def _allocate(kind: str, path: str, descriptor: int, size_bytes: int) -> int:
    """Give the file its blocks; returns its usable size in bytes."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise MediumUnusable(
            f"cannot use {path} as the {kind} tier: it belongs to user {status.st_uid}, who could "
            "cut it short under the agent; remove it or configure another path"
        )
    if status.st_size < BLOCK_BYTES and any(os.pread(descriptor, BLOCK_BYTES, 0)):
        raise ForeignContent(
            f"the {kind} tier {path} holds something that is not a Tierline store; configure "
            "another path, or give up what it holds: remove the file"
        )
    if size_bytes and status.st_size > size_bytes:
        raise MediumUnusable(
            f"cannot use {path} as the {kind} tier of {size_bytes} bytes: it has "
            f"{status.st_size} bytes; configure that size or remove the file"
        )
    usable = _usable(status, size_bytes)
    if usable == 0:
        raise MediumUnusable(
            f"cannot use {path} as the {kind} tier: it is empty; configure a size for it"
        )
    if _is_allocated(descriptor, usable):
        return usable
    try:
        os.posix_fallocate(descriptor, 0, usable)
    except OSError as error:
        if status.st_size == 0:
            os.ftruncate(descriptor, 0)  # what was allocated so far would only be in the way
        raise unusable(f"allocate {usable} bytes for the {kind} tier", path, error) from error
    return usable


def _usable(status: os.stat_result, size_bytes: int) -> int:
    """Whole blocks of a file, in bytes."""
    usable = size_bytes or status.st_size
    return usable - usable % BLOCK_BYTES


def _is_allocated(descriptor: int, size_bytes: int) -> bool:
    """Whether a file in memory has all its blocks: asking for them looks at each page again.

    A file system on a disk counts blocks of its own, too.
    """
    status = os.fstat(descriptor)
    allocated = min(status.st_size, status.st_blocks * 512)
    return allocated >= size_bytes and _file_system(descriptor) in _IN_MEMORY


def _block_device_size(kind: str, path: str, descriptor: int, size_bytes: int) -> int:
    available = os.lseek(descriptor, 0, os.SEEK_END)
    if size_bytes > available:
        raise MediumUnusable(
            f"cannot use {size_bytes} bytes of the {kind} tier {path}: it has {available}; "
            "configure a smaller size"
        )
    usable = size_bytes or available
    return usable - usable % BLOCK_BYTES


def _as_file(
    kind: str, path: str, descriptor: int, size_bytes: int, *, may_be_direct: bool = True
) -> FileMedium:
    direct = may_be_direct and _try_direct(kind, path, descriptor)
    return FileMedium(
        kind,
        path,
        descriptor,
        size_bytes,
        direct=direct,
        durability=Durability.POWER_LOSS if may_be_direct else Durability.PROCESS,
    )


def _try_direct(kind: str, path: str, descriptor: int) -> bool:
    """Switch the descriptor to O_DIRECT, and prove by one read that the file system means it."""
    if kind != "nvme":
        return False  # a stand-in for pmem: the page cache is the memory it stands for
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        os.preadv(descriptor, [memory.scratch(BLOCK_BYTES)], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise unusable(f"read the {kind} tier", path, error) from error
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return False
    return True
