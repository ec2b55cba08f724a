"""`python -m tests.matrix [PYTHON-TORCH ...]`: the plugin in the Pythons and PyTorches of images.

Each cell is an environment of its own with PyTorch and nothing else, no NumPy. The plugin comes as
it comes to a pod. Where it is promised, generated programs run plain, observed and managed by a
real agent, and must not be able to tell; elsewhere a program runs unmanaged and says why, and is
refused where it must be managed. `ends` is the oldest and the newest promised, and those refused.
A cell whose Python cannot be had on this machine is told and fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.programs import modes
from tests.programs.test_programs import faults

from tierline_torch.serving import OLDEST_PYTHON, OLDEST_TORCH

ROOT: Final = Path(__file__).parents[1]
UV: Final = Path(sys.prefix, "bin", "uv")
FOLDER: Final = ROOT / "build" / "matrix"
PROGRAMS: Final = 60
NEWEST: Final = "newest"


class Cell(NamedTuple):
    """A Python and a PyTorch, as versions that uv understands."""

    python: str
    torch: str

    @property
    def promised(self) -> bool:
        torch = self.torch != NEWEST and _numbers(self.torch) < OLDEST_TORCH
        return _numbers(self.python) >= OLDEST_PYTHON and not torch

    def __str__(self) -> str:
        return f"{self.python}-{self.torch}"


CELLS: Final = (
    *(Cell("3.10", torch) for torch in ("2.6", "2.7", "2.8", "2.9", NEWEST)),
    *(Cell("3.11", torch) for torch in ("2.6", NEWEST)),
    *(Cell("3.12", torch) for torch in ("2.6", "2.8", NEWEST)),
    *(Cell("3.13", torch) for torch in ("2.6", NEWEST)),
    *(Cell("3.14", torch) for torch in ("2.9", NEWEST)),
    Cell("3.9", "2.6"),
    Cell("3.10", "2.5"),
)
"""PyTorch has wheels for Python 3.14 since 2.9, and for 3.9 until 2.8."""
ENDS: Final = (Cell("3.10", "2.6"), Cell("3.13", NEWEST), Cell("3.9", "2.6"), Cell("3.10", "2.5"))
_PROGRAM: Final = """
import torch
model = torch.nn.Linear(2, 2).eval()
with torch.inference_mode():
    print(model(torch.ones(2)).shape)
"""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def python_of(cell: Cell) -> Path:
    """The Python of a cell, with its PyTorch. Raises RuntimeError: it is not to be had."""
    found = FOLDER / str(cell) / "bin" / "python"
    if not found.exists():
        _uv(
            "venv",
            "--quiet",
            "--no-project",
            "--python",
            _base(cell.python),
            str(FOLDER / str(cell)),
        )
    wanted = "torch" if cell.torch == NEWEST else f"torch=={cell.torch}.*"
    _uv("pip", "install", "--quiet", "--python", str(found), wanted)
    return found


def _base(version: str) -> str:
    """The interpreter of a version: pyenv's, or what uv finds or fetches."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    own = sorted(pyenv.glob(f"{version}.*/bin/python"))
    return str(own[-1]) if own else version


def _uv(*words: str) -> None:
    done = subprocess.run([str(UV), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])


def streams(python: modes.Interpreter, folder: Path) -> str:
    """Run programs in all modes; how many, and how much was streamed."""
    programs = range(PROGRAMS)
    plain = modes.plain(folder, "programs", programs, python)
    with modes.Agent(folder, "programs", python) as agent:
        observed = modes.observed(folder, "programs", programs, python)
        managed = agent.managed("programs", programs)
    for under in (plain, observed, managed):
        ended = [result for result in under.values() if "ended" in result]
        assert not ended, ended[0]
        different = faults("programs", plain, under)
        assert not different, different
    without = sum("numpy" in result["raised"].lower() for result in plain.values())
    assert without < len(programs) // 3, "most programs need NumPy"
    assert agent.streamed_bytes > 1 << 20, "nothing was streamed"
    return f"{len(programs) - without} programs, {agent.streamed_bytes >> 10:,} KiB streamed"


def stands_aside(python: modes.Interpreter, _folder: Path) -> str:
    """Run a program that is not managed, and one that must be; what was told."""
    task = {**os.environ, **python.environment, "TIERLINE_SOCKET": "/nowhere/tierline.sock"}
    run = [python.path, "-W", "ignore", "-c", _PROGRAM]
    aside = subprocess.run(run, env=task, capture_output=True, text=True, check=False)
    assert (aside.returncode, aside.stdout) == (0, "torch.Size([2])\n"), aside.stderr
    (sentence,) = aside.stderr.splitlines()
    assert sentence.endswith("; this program runs without Tierline"), sentence
    required = {**task, "TIERLINE_REQUIRED": "1"}
    refused = subprocess.run(run, env=required, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    assert refused.stderr.splitlines() == [sentence.partition(";")[0]]
    return sentence.removeprefix("tierline: ")


def check(cell: Cell) -> str | None:
    """Check a cell, and print its line; what is wrong with it."""
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="matrix-") as name:
            folder = Path(name)
            python = modes.Interpreter.of_an_image(python_of(cell), folder / "plugin")
            told = (streams if cell.promised else stands_aside)(python, folder)
    except (RuntimeError, AssertionError) as error:
        print(f"{cell!s:14} FAILED {error}", flush=True)
        return str(error)
    print(f"{cell!s:14} {told} ({time.monotonic() - begin:.0f} s)", flush=True)
    return None


def main(words: Sequence[str]) -> int:
    """Check cells; returns how many are not as they should be."""
    parser = argparse.ArgumentParser(prog="tests.matrix", description=__doc__)
    names = {str(cell): cell for cell in CELLS}
    parser.add_argument("cells", nargs="*", choices=[[], "ends", *names], metavar="CELL")
    chosen = parser.parse_args(words).cells
    cells = ENDS if chosen == ["ends"] else [names[name] for name in chosen] or CELLS
    return sum(check(cell) is not None for cell in cells)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
