"""The user's cache: builds of other people's sources, made once a machine for all clones.

Invariant: a place in the cache is complete or absent. It is made in a place of its own and renamed
at its end, under a lock that one process holds; what an interrupted one left is removed by the
next. What no clone has asked for in `UNUSED_DAYS` goes when something new is made.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

UNUSED_DAYS: Final = 30
_PARTIAL: Final = "making-"
_LOCK: Final = "lock"


def folder(name: str) -> Path:
    """Return the folder `name` of the cache, which may not be there yet."""
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (told if told.is_absolute() else Path.home() / ".cache") / "tierline" / name


def once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return `place`, a file or a folder; `make` makes it under another name if it is absent."""
    if not _touch(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.parent / _LOCK):
            if not _touch(place):
                _forget(place.parent)
                partial = place.with_name(_PARTIAL + place.name)
                make(partial)
                partial.rename(place)
    return place


def _touch(place: Path) -> bool:
    """Say that `place` is in use; returns whether it is there."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    return True


def _forget(cache: Path) -> None:
    """Remove what was not finished, and what was not used for long."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in cache.iterdir():
        partial = path.name.startswith(_PARTIAL)
        if path.name == _LOCK or not (partial or path.lstat().st_mtime < oldest):
            continue
        if not partial:  # what is half removed is not taken for complete
            path = path.rename(path.with_name(_PARTIAL + path.name))  # noqa: PLW2901
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder; waits for another process that makes something there."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build to end ({path} is locked)", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
