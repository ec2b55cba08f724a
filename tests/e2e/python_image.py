"""An image with a Python of this machine and its standard library, and a task's program.

Nothing of Tierline is in it: what its pods run of Tierline comes by the claim.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.busybox import libraries

from tierline_cluster.images import Image

PYTHON: Final = "tierline.local/python:1"
PROGRAM: Final = "/program.py"
_OF_TORCH: Final = ("libtorch_cpu.so", "libtorch_python.so")
"""Of PyTorch the image has the system's libraries that it needs; pods mount the rest."""
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "__pycache__"}
)
_ASK: Final = """
import json, os, sys, sysconfig
paths = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
print(json.dumps([os.path.realpath(sys.executable), *paths]))
"""


class Python(NamedTuple):
    """Where an interpreter has what."""

    executable: Path
    library: Path
    packages: Path

    @classmethod
    def at(cls, path: Path) -> Python:
        said = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=True).stdout
        return cls(*map(Path, json.loads(said)))


def python_image(
    python: Python | None = None, program: str = "program.py", reference: str = PYTHON
) -> Image:
    """Return the image, by default with the Python of the tests.

    It runs the program of that name in this folder, as an ordinary user.
    """
    python = python or Python.at(Path(sys.executable))
    files = {str(path): path for path in _standard_library(python.library)}
    needed = [python.executable, *(path for path in files.values() if path.suffix == ".so")]
    needed += [python.packages / "torch" / "lib" / name for name in _OF_TORCH]
    for binary in needed:
        found = (path for path in libraries(binary) if python.packages not in path.parents)
        files |= {str(path): path for path in found}
    own = {str(python.executable): python.executable, PROGRAM: Path(__file__).with_name(program)}
    return Image(
        reference,
        {**files, **own},
        links={"/bin/python": str(python.executable), "/bin/python3": str(python.executable)},
        entrypoint=["/bin/python3", PROGRAM],
        user="65532:65532",
    )


def _standard_library(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        inside = path.relative_to(root).parts
        wanted = not _LEFT_OUT.intersection(inside) and not inside[0].startswith("config-")
        if path.is_file() and wanted:
            yield path
