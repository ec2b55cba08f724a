"""The last words of a program: one line, and of a Python error also where it came from. Pure.

The place is that of the innermost frame of the program's own code: frames of installed packages and
of Python itself are left out, since a person looks for the line that they wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FRAME: Final = re.compile(r'[\s|+-]*File "(?P<file>.*)", line (?P<line>\d+)(, in .*)?')
_NOT_OWN: Final = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|<frozen ")
_ERROR: Final = re.compile(r"[\s|+-]*(?P<said>[A-Za-z_][\w.]*(: .*)?)")
_SILENT: Final = "it said nothing"


def last_line(lines: Sequence[str]) -> str:
    """The last of them."""
    return lines[-1] if lines else _SILENT


def last_words(lines: Sequence[str]) -> str:
    """The last line; where an error of Python stands at the end, that and its place.

    What was said after the error goes with it.
    """
    frames = [(at, frame) for at, line in enumerate(lines) if (frame := _FRAME.fullmatch(line))]
    if not frames:
        return last_line(lines)
    at, innermost = frames[-1]
    said = next(
        (
            (number, error["said"])
            for number, line in enumerate(lines[at + 1 :], at + 1)
            if not line.startswith("    ") and (error := _ERROR.fullmatch(line))
        ),
        None,
    )
    if said is None:
        return last_line(lines)
    first = max(
        (number for number, line in enumerate(lines[:at]) if "Traceback (most recent" in line),
        default=0,
    )
    own = [
        frame for number, frame in frames if number > first and not _NOT_OWN.search(frame["file"])
    ]
    place = own[-1] if own else innermost
    words = f"{said[1]} ({place['file']}:{place['line']})"
    return words if said[0] == len(lines) - 1 else f"{words} … {lines[-1].strip()}"
