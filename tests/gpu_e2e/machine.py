"""What of this machine a pod gets: its Python with PyTorch, and its GPU driver's libraries.

An image with PyTorch for CUDA would be gigabytes. The machine has all of it, so an administrator's
read-only volumes (PersistentVolumes) show it to pods: those stay as PodSecurity `restricted` wants
them, and name no folder of the node themselves.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tierline_cluster.images import Image

PROGRAMS: Final = "tierline.local/programs:1"
_PACKAGES: Final = ("torch", "transformers", "numpy")
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
_FURTHER: Final = ("libnvidia-ptxjitcompiler.so.1",)
"""Only for programs that bring PTX, and not with every driver."""


def python_folders() -> list[Path]:
    """The folders of this Python, its packages and the system's; none lies in another."""
    found = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix)}
    found |= {Path(sys.executable).resolve().parent.parent}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{sys.executable} has no {name}; set PYTHON to one that has")
        found.add(Path(spec.origin).parents[1])
    return _outermost(found)


def _outermost(folders: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for folder in sorted(folders):
        if not any(folder.is_relative_to(one) for one in kept):
            kept.append(folder)
    return kept


def driver_folder(library: str, into: Path) -> Path:
    """Copy the GPU driver's libraries, which lie next to `library`, into a folder of their own.

    The agent's image has another system's libraries: nothing else of this one may come with them.
    """
    into.mkdir()
    for name in _LIBRARIES:
        shutil.copy(Path(library).with_name(name), into / name)
    for name in _FURTHER:
        if Path(library).with_name(name).exists():
            shutil.copy(Path(library).with_name(name), into / name)
    return into


def programs_image() -> Image:
    """The image of the tasks' program: two files; system and Python come by volumes."""
    here = Path(__file__).resolve().parents[1]
    files = ("gpu/models.py", "gpu_e2e/program.py")
    return Image(
        PROGRAMS,
        {f"/programs/tests/{name}": here / name for name in files},
        links={f"/{name}": f"usr/{name}" for name in ("bin", "lib", "lib64")},
        environment=["PATH=/bin", "HOME=/tmp", "USER=program", "PYTHONDONTWRITEBYTECODE=1"],
        user="65532:65532",
    )
