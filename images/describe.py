"""Writes what `importlib.metadata` reads of Tierline: version, entry points.

describe.py PYPROJECT VERSION FOLDER      VERSION must be the one that PYPROJECT says
"""

import sys
import tomllib
from pathlib import Path


def main(pyproject: str, version: str, folder: str) -> None:
    """Make FOLDER/tierline-VERSION.dist-info."""
    project = tomllib.loads(Path(pyproject).read_text("utf-8"))["project"]
    if version != project["version"]:
        sys.exit(
            f"cannot make an image of version {version!r}: pyproject.toml says "
            f"{project['version']}; give --build-arg VERSION={project['version']}"
        )
    described = Path(folder, f"{project['name']}-{version}.dist-info")
    described.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    (described / "METADATA").write_text(metadata, "utf-8")
    points = [
        line
        for group, names in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in names.items()))
    ]
    (described / "entry_points.txt").write_text("\n".join(points) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
