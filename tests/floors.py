"""Holds the floors of the native libraries: `python -m tests.floors`; exit 1 on a fault.

A folder is a floor. A file includes what lies on its own floor or on a lower one, and says where:
`"wire/words.h"`. A `.c` and its header count as one, and no such pairs include each other in a
circle.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
LIBRARIES = ("nodeagent/native/interposer/src", "nodeagent/native/src")
# From the ground up. The client library calls the interposer, which knows nothing of it.
FLOORS = (
    *("driver", "launches", "budget", "memory", "plans", "graphs", "entry"),
    *("wire", "arena", "cuda", "link", "loading", "libc", "jobs", "lease", "gates", "client"),
)
PUBLIC = "tierline/"  # the interfaces for programs lie below all floors
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)', re.MULTILINE)


def read() -> dict[str, str]:
    """The text of every file of both libraries, by its floor and name."""
    paths = (path for library in LIBRARIES for path in (ROOT / library).rglob("*.[ch]"))
    return {"/".join(path.parts[-2:]): path.read_text(encoding="utf-8") for path in paths}


def faults(files: Mapping[str, str]) -> list[str]:
    """What is wrong with these files' includes, a sentence each."""
    wrong = [f"{name}: {_floor(name)} is no floor" for name in files if _floor(name) not in FLOORS]
    files = {name: text for name, text in files.items() if _floor(name) in FLOORS}
    units: dict[str, set[str]] = {}
    for name, text in files.items():
        for quote, include in INCLUDE.findall(text):
            if include in files:
                if _height(include) > _height(name):
                    wrong.append(f"{name}: includes {include}, which lies above it")
                if _unit(include) != _unit(name):
                    units.setdefault(_unit(name), set()).add(_unit(include))
            elif quote == '"' and not include.startswith(PUBLIC):
                wrong.append(f"{name}: includes {include}, which lies on no floor")
    try:
        TopologicalSorter(units).prepare()
    except CycleError as circle:
        wrong.append("they include each other: " + " <- ".join(circle.args[1]))
    return sorted(wrong)


def _unit(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _floor(name: str) -> str:
    return PurePosixPath(name).parts[0]


def _height(name: str) -> int:
    return FLOORS.index(_floor(name))


if __name__ == "__main__":
    found = faults(read())
    for sentence in found:
        print(sentence, file=sys.stderr)
    print(f"{len(FLOORS)} floors: {len(found)} includes to mend")
    sys.exit(bool(found))
