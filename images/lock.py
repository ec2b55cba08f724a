"""Writes images/*/requirements.txt: what each image installs, by version and digest.

    python images/lock.py            # resolves again, within the ranges of pyproject.toml

Every image names the packages that its program imports; the ranges stand in pyproject.toml alone,
and versions are those of requirements.lock, with which all tests run.
Needs `uv` in the running Python's environment. What it writes is checked in: builds resolve
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMAGES: Final = Path(__file__).resolve().parent
PACKAGES: Final = {
    "operator": (
        *("aiohttp", "click", "kopf", "kubernetes", "numpy", "prometheus-client"),
        *("pydantic", "pyyaml"),
    ),
    "agent": (
        *("aiohttp", "blake3", "cuda-bindings", "grpcio", "kubernetes", "nvidia-ml-py"),
        *("prometheus-client", "protobuf", "pydantic", "pyyaml", "uvloop", "xxhash"),
    ),
    "agent/compiler": ("ziglang",),
}
"""The packages that each image installs, and those that the agent's is compiled with."""
_PYTHON: Final = "3.11"
"""Debian bookworm's."""


def requirements() -> dict[str, str]:
    """Return each package of pyproject.toml with its range, as a requirement; by its name."""
    project = tomllib.loads((IMAGES.parent / "pyproject.toml").read_text("utf-8"))["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    parsed = (Requirement(line) for group in groups for line in group)
    return {canonicalize_name(one.name): str(one) for one in parsed if one.name != "tierline"}


def locked(image: str) -> dict[str, str]:
    """Return the version of each package that an image installs, by its name."""
    lines = (IMAGES / image / "requirements.txt").read_text("utf-8").splitlines()
    pins = (line.removesuffix("\\").strip().split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version.split()[0] for name, version in pins}


def main() -> None:
    """Resolve again."""
    ranges = requirements()
    for image, names in PACKAGES.items():
        wanted = "\n".join(ranges.get(name, name) for name in names)
        subprocess.run(
            [
                *(str(Path(sys.prefix, "bin", "uv")), "pip", "compile", "--quiet", "--upgrade"),
                *("--generate-hashes", "--no-header", "--no-annotate", "--only-binary=:all:"),
                *("--python-version", _PYTHON, "--python-platform", "x86_64-manylinux_2_28"),
                *("--constraint", str(IMAGES.parent / "requirements.lock")),
                *("--output-file", str(IMAGES / image / "requirements.txt"), "-"),
            ],
            input=wanted,
            text=True,
            check=True,
        )


if __name__ == "__main__":
    main()
