"""Builds of native code for tests: plain and sanitized, once a session, and programs run on them.

One build has it all: the client library with the interposer, the simulated driver, and the
programs that test them. Each compiler works once on what they share.

A missing tool fails the run; it never skips a test.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAVOURS = {"plain": "", "address": "address,undefined", "thread": "thread"}
WITHOUT_THREADS = ("plain", "address")
"""Those for programs of one thread: there is no race to be found."""


def cuda_include() -> Path:
    """The folder of cuda.h in the nvidia-cuda-runtime package."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None, "nvidia-cuda-runtime is not installed: run `make venv`"
    for folder in spec.submodule_search_locations or ():
        for header in sorted(Path(folder).glob("cu*/include/cudaTypedefs.h")):
            return header.parent
    raise AssertionError("no cudaTypedefs.h in the nvidia packages of this environment")


def tool(name: str) -> str:
    """A program of this environment, or of the system."""
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    assert found is not None, f"{name} is missing: run `make test`, which installs it"
    return found


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run to a good end, with `env` added to this environment."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done


@functools.cache
def build(flavour: str) -> Path:
    """Build all native code and its tests; the folder, in which libtierline.so lies."""
    folder = ROOT / "build" / f"native-{flavour}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(flavour, folder)
    return folder


def _build(flavour: str, folder: Path) -> None:
    run(
        *(tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"),
        *("-S", str(ROOT / "nodeagent" / "native"), "-B", str(folder)),
        f"-DTIERLINE_SANITIZE={FLAVOURS[flavour]}",
        "-DTIERLINE_TESTS=ON",
        f"-DSIMCUDA_CUDA_INCLUDE={cuda_include()}",
        f"-DINTERPOSER_TESTS={ROOT / 'tests' / 'interposer'}",
        f"-DSIMCUDA_TESTS={ROOT / 'tests' / 'simcuda'}",
    )
    run(tool("cmake"), "--build", str(folder), "--parallel", "2")


def simulated_driver(flavour: str) -> Path:
    """The folder of the simulated libcuda.so.1 and libnvidia-ml.so.1 in that build."""
    return build(flavour) / "interposer-tests" / "simcuda"


@contextmanager
def simulated_machine() -> Iterator[Path]:
    """A tmpfs folder for the state of simulated GPUs; removed with what crashed in it."""
    with tempfile.TemporaryDirectory(prefix="simcuda-", dir="/dev/shm") as folder:
        yield Path(folder)
