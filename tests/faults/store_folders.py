"""Places for stores in tests: a tmpfs, and the disk that the repository lies on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BUILD = Path(__file__).parents[2] / "build"


@contextmanager
def store_folder(where: str) -> Iterator[Path]:
    """A new folder on "memory" or "disk", removed at the end."""
    _BUILD.mkdir(exist_ok=True)
    parent = Path("/dev/shm") if where == "memory" else _BUILD  # noqa: S108 - a tmpfs is wanted
    with tempfile.TemporaryDirectory(dir=parent, prefix="tierline-test-") as folder:
        yield Path(folder)
