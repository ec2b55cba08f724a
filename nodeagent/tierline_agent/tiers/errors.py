"""Everything that can go wrong between the agent and its tiers.

    TierError
    |-- MediumUnusable      it cannot serve as a tier at all: not there, too small, not permitted
    |   |-- ForeignContent  it holds something that is not a Tierline store, and must not be lost
    |   `-- OtherGeometry   it holds a Tierline store made for another extent size or medium size
    |-- MediumFailure       one read, write or flush failed; another one may succeed
    |-- NoSpace             nothing is free and nothing may be evicted
    |-- UnknownExtent       no such content here (in this trust domain)
    |-- CorruptExtent       the content's bytes are not what was stored; a new `put` repairs it
    `-- MemoryChanged       the medium is right, but somebody wrote to the caller's memory meanwhile

An operating-system error is translated where it arises and chained. A mistake of the calling code
(a wrong size, memory that is not aligned) is a ValueError, not one of these.
"""
# ruff: noqa: N818 - the names say what is the case; `NoSpace` and its like are used everywhere

from __future__ import annotations

import errno
import os


class TierError(Exception):
    """Root of this package's errors; its text is one sentence for an administrator."""


class MediumUnusable(TierError):
    """A medium cannot serve as a tier until its administrator does something."""


class ForeignContent(MediumUnusable):
    """A medium holds something that is not a Tierline store."""


class OtherGeometry(MediumUnusable):
    """A medium holds a Tierline store that was made for other sizes."""


class MediumFailure(TierError):
    """One operation on a medium failed (input/output error, file cut short)."""


class NoSpace(TierError):
    """A store is full of content that is in use, or its medium ran out of blocks."""


class UnknownExtent(TierError):
    """A store has no content of this digest in this trust domain."""


class CorruptExtent(TierError):
    """Stored bytes do not match their digest; they will not be used until written again."""


class MemoryChanged(TierError):
    """The memory that received an extent was written to by somebody else during the copy."""


def unusable(attempt: str, path: object, error: OSError) -> MediumUnusable | NoSpace:
    """Translate a failed preparation of `path`; `attempt` reads like "open the nvme tier"."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(
            f"cannot {attempt} {path}: {_cause(error)}; free some space or configure a smaller tier"
        )
    advice = {
        errno.ENOENT: "create its folder or correct the configured path",
        errno.EACCES: "run the agent as a user that may read and write it",
        errno.EPERM: "run the agent as a user that may read and write it",
        errno.EBUSY: "it is mounted or in use by another program",
        errno.EROFS: "mount its file system writable",
        errno.EISDIR: "configure a file in that folder, not the folder",
    }.get(error.errno or 0, "check the device and the kernel's log")
    return MediumUnusable(f"cannot {attempt} {path}: {_cause(error)}; {advice}")


def failed(operation: str, path: object, offset: int, error: OSError) -> MediumFailure | NoSpace:
    """Translate a failed `operation` ("read", "write", "flush") at byte `offset` of `path`."""
    place = f"cannot {operation} {path} at byte {offset}: {_cause(error)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{place}; free some space on its file system")
    return MediumFailure(f"{place}; check the device and the kernel's log")


def _cause(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
