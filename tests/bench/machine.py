"""What every benchmark prints first: the machine, the command, the versions."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def processor() -> str:
    """The product name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe() -> dict[str, Any]:
    """The machine and the command, for a table's head and for the JSON next to it."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores, {memory_bytes / 2**30:.0f} GiB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "tierline": version("tierline"),
        "command": f"python -m {_module()} {' '.join(sys.argv[1:])}".strip(),
    }


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).stem


def print_head(about: dict[str, Any]) -> None:
    """Print what `describe` found."""
    for key, value in about.items():
        print(f"{key:<9} {value}")
    print(flush=True)


def keep(file: Path | None, figures: dict[str, Any]) -> None:
    """Write what there is so far, if there is a file for it, also for a run that is cut short."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")
