"""mypy on all code, and as Python 3.10 has it on what programs load: `python -m tests.typed`.

A clone that mypy has not seen begins with what it remembers of another clone on this machine: of
the packages in `requirements.lock`, which take most of the minutes. mypy holds each file against it
by its content. The clone's own memory is its own, so that no two processes ever write into one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tierline_cluster.cache import folder, once

ROOT = Path(__file__).resolve().parents[1]
MEMORY = ".mypy_cache"
OLDEST = ("tierline", "tierline_client", "tierline_torch", "tierline_steps")
OLDEST_MODULES = ("tierline_api.layout", "tierline_api.schema.quantities")


def kept() -> Path:
    """Where what mypy remembers is kept for other clones: the first of each week."""
    packages = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:12]
    year, week, _ = datetime.now(UTC).isocalendar()
    return folder("mypy") / f"{packages}-{year}-{week:02}"


def remembered() -> Path | None:
    """The newest that another clone kept for the same packages."""
    packages, _, _ = kept().name.partition("-")
    found = sorted(folder("mypy").glob(f"{packages}-*"))
    return found[-1] if found else None


def main() -> int:
    """Say what mypy finds; 1 if that is anything."""
    memory, before = ROOT / MEMORY, remembered()
    if before and not memory.exists():
        partial = ROOT / "build" / MEMORY
        shutil.copytree(before, partial, dirs_exist_ok=True)
        partial.rename(memory)
    mypy = [str(Path(sys.executable).with_name("mypy"))]
    oldest = [word for name in (*OLDEST, *OLDEST_MODULES) for word in ("-p", name)]
    for words in ([], ["--python-version", "3.10", *oldest]):
        if subprocess.run([*mypy, *words], cwd=ROOT, check=False).returncode:
            return 1
    once(kept(), lambda partial: _keep(memory, partial))
    return 0


def _keep(memory: Path, partial: Path) -> None:
    shutil.copytree(memory, partial, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
