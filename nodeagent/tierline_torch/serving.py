"""Whether the plugin serves this process, or stands aside before it touches the program.

It is loaded into whatever Python and PyTorch an image has. Promised are Python 3.10 to 3.14 and
PyTorch from 2.6 on, and of the image nothing else is needed. In any other process, and where a part
of the plugin cannot be imported, one sentence is told and the program runs without Tierline; with
TIERLINE_REQUIRED=1 it is refused by that sentence.

This module and what it imports run in every Python for which there is a PyTorch that loads it, 3.9
the oldest. It needs no PyTorch.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

from tierline_torch.errors import TierlineError
from tierline_torch.telling import tell

OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 14)
OLDEST_TORCH = (2, 6)


class _Known:
    """The findings of this process."""

    promised = False
    """Whether its versions were looked at."""
    reason: str | None = None
    """Why it is not served."""
    told = False


_known = _Known()


def promised() -> bool:
    """Whether the plugin is made for this Python and PyTorch, and nothing of it failed to load.

    If not, that was told. Raises TierlineError if not and TIERLINE_REQUIRED=1.
    """
    if not _known.promised:
        _known.promised = True
        _known.reason = reason_against(sys.version_info[:2], _torch_version(), locked=_is_locked())
    return _answer()


def cannot_load(error: Exception) -> bool:
    """Stand aside, as a part of the plugin cannot be imported; False. Raises as `promised` does."""
    _known.reason = f"the plugin cannot be loaded into this program: {error!r}"
    return _answer()


def _answer() -> bool:
    reason = _known.reason
    if reason is None:
        return True
    if os.environ.get("TIERLINE_REQUIRED") == "1":
        raise TierlineError(reason)
    if not _known.told:
        _known.told = True
        tell(f"{reason}; this program runs without Tierline")
    return False


def reason_against(python: tuple[int, ...], torch: str, *, locked: bool = True) -> str | None:
    """Why the plugin is not made for these versions of Python and PyTorch; None if it is. Pure.

    `locked`: whether this Python runs one thread at a time.
    """
    if not OLDEST_PYTHON <= tuple(python) <= NEWEST_PYTHON:
        return (
            f"a program of Python {_dotted(python)} cannot be managed: the plugin runs in Python "
            f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}"
        )
    if not locked:
        return (
            "a program of a free-threaded Python cannot be managed: the plugin needs the global "
            "interpreter lock"
        )
    if _numbers(torch) < OLDEST_TORCH:
        return (
            f"a program of PyTorch {torch} cannot be managed: the plugin takes PyTorch "
            f"{_dotted(OLDEST_TORCH)} and later"
        )
    return None


def _is_locked() -> bool:
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def _torch_version() -> str:
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    try:
        return str(loaded or metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return "of no known version"


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; of what is none, no number."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version[:2]))
