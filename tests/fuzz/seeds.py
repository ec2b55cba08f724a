"""Writes the golden frames as seed files: seeds.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.unit.agent.transport.describe import golden_vectors


def write_seeds(folder: Path) -> None:
    """One file a vector."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, vector in enumerate(golden_vectors()):
        (folder / f"golden-{number:03}").write_bytes(vector.frame)


if __name__ == "__main__":
    write_seeds(Path(sys.argv[1]))
