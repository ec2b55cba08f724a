"""Fetches what the plugin needs in a pod beyond its program's own torch and numpy.

    fetch.py REQUIREMENTS FOLDER      run by a Python that has pip

For each Python that a pod may have: extension modules of several lie side by side, as their names
tell them apart.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main(requirements: str, folder: Path) -> None:
    """Install `requirements` into `folder`."""
    for version in PYTHONS:
        with tempfile.TemporaryDirectory() as fetched:
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
                    *("--quiet", "--no-cache-dir", "--no-compile", "--no-deps"),
                    *("--only-binary=:all:", "--require-hashes", "-r", requirements),
                    *("--python-version", version, "--target", fetched),
                ],
                check=True,
            )
            for path in Path(fetched).iterdir():
                if not path.name.endswith(".dist-info"):
                    shutil.copytree(path, folder / path.name, dirs_exist_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
