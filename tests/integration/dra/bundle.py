"""`python -m tierline_agent.kubernetes.bundle FOLDER`: what pods get of Tierline, laid out.

FOLDER/libtierline.so is the library; FOLDER/python goes to the end of a program's PYTHONPATH: the
plugin with its entry point. It needs nothing but Python and PyTorch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Final

from tierline_client.library import library_path

_PACKAGES: Final = (
    "tierline",
    "tierline_torch",
    "tierline_client",
    "tierline_steps",
    "tierline_api",
)
_NOTES: Final = ("METADATA", "entry_points.txt")


def lay_out(folder: Path) -> None:
    """Copy everything into `folder`, which must not exist yet. Raises OSError."""
    python = folder / "python"
    python.mkdir(parents=True)
    for name in _PACKAGES:
        shutil.copytree(
            _source_of(name), python / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    tierline = importlib.metadata.distribution("tierline")
    notes = python / f"tierline-{tierline.version}.dist-info"
    notes.mkdir()
    for name in _NOTES:
        (notes / name).write_text(tierline.read_text(name) or "", encoding="utf-8")
    shutil.copy(library_path(), folder)


def _source_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"cannot lay out {package}: it is not installed")
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
