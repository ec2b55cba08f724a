"""Output of a command where somebody else reads or keeps it.

A reader that leaves, such as `| head`, is no fault: the rest is dropped, and the command ends as it
would have ended. What cannot be written is one sentence that names the place.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tierline_cli.errors import CommandError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write `path` within.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(_unwritten(str(path), error)) from error


@contextmanager
def drawing(path: Path) -> Iterator[Any]:
    """Axes; what is drawn there within is the picture `path`.

    Raises:
        CommandError: it cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - half a second that other commands do not pay

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        yield axes
        with writing(path):
            figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


def tell_of_output() -> None:
    """Have standard output and standard error behave as this module says."""
    if sys.stdout is not None:
        sys.stdout = _stream(sys.stdout, "the standard output")
    if sys.stderr is not None:  # where nobody hears, nothing can be said
        sys.stderr = _stream(sys.stderr, "")


class _Descriptor(io.FileIO):
    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name = name
        self._lost = False

    def write(self, data: "ReadableBuffer", /) -> int:
        size = memoryview(data).nbytes
        if self._lost:
            return size
        try:
            return super().write(data)
        except OSError as error:
            self._lost = True
            if self._name and not isinstance(error, BrokenPipeError):
                raise CommandError(_unwritten(self._name, error)) from error
            return size


def _stream(stream: TextIO, name: str) -> TextIO:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(stream.fileno(), name)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def _unwritten(place: str, error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot write to {place}: {reason}; write to another place, or make room there"
