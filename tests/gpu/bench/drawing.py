"""The command line of the programs that draw a benchmark's JSON."""

from __future__ import annotations

import argparse
from pathlib import Path


def files(about: str | None) -> tuple[Path, Path]:
    """What was measured, and the picture to be made of it; `about` is the program's docstring."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    return arguments.measured, arguments.picture
