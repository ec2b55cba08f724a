"""An image with this machine's Python and its standard library, and a task's program.

Nothing of Tierline is in it: what its pods run of Tierline comes by the claim.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.busybox import libraries

from tierline_cluster.images import Image

PYTHON: Final = "tierline.local/python:1"
PROGRAM: Final = "/program.py"
_OF_TORCH: Final = ("libtorch_cpu.so", "libtorch_python.so")
"""Of PyTorch the image has the system's libraries that it needs; pods mount the rest."""
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "__pycache__"}
)


def python_image() -> Image:
    """Return the image; it runs the program as an ordinary user."""
    python = Path(sys.executable).resolve()
    files = {str(path): path for path in _standard_library()}
    needed = [python, *(path for path in files.values() if path.suffix == ".so")]
    packages = Path(sysconfig.get_path("purelib"))
    needed += [packages / "torch" / "lib" / name for name in _OF_TORCH]
    for program in needed:
        found = (path for path in libraries(program) if packages not in path.parents)
        files |= {str(path): path for path in found}
    return Image(
        PYTHON,
        {**files, str(python): python, PROGRAM: Path(__file__).with_name("program.py")},
        links={"/bin/python": str(python), "/bin/python3": str(python)},
        entrypoint=["/bin/python3", PROGRAM],
        user="65532:65532",
    )


def _standard_library() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*"):
        inside = path.relative_to(root).parts
        wanted = not _LEFT_OUT.intersection(inside) and not inside[0].startswith("config-")
        if path.is_file() and wanted:
            yield path
