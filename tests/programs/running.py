"""The process of many programs: `python -m tests.programs.running FILE KIND NUMBER...`.

For each program it writes a line of JSON to FILE: everything that it said, printed and raised.
A program that takes longer than PATIENCE_S ends the process; the caller goes on with the next.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from tests.programs.kinds import Kind, load
from tests.programs.seen import seen

PATIENCE_S = 60
"""A program takes a second at most, on a machine that is not busy."""


def run(kind: Kind, number: int, folder: Path) -> dict[str, Any]:
    """Run a program, and return what could be seen of it."""
    said: list[str] = []
    printed = io.StringIO()
    _as_at_the_start()
    begin = time.monotonic()
    raised = ""
    try:
        with contextlib.redirect_stdout(printed):
            kind.run(number, lambda *values: said.append(" ".join(map(seen, values))), folder)
    except BaseException as error:  # a program may raise what it likes
        raised = f"{type(error).__name__}: {_text(error).strip().splitlines()[:1]}"
        said.append(_where(error))
    took_s = time.monotonic() - begin
    gc.collect()
    return {
        "seed": number,
        "said": sorted(said) if kind.unordered(number) else said,
        "printed": printed.getvalue(),
        "raised": raised,
        "files": sorted(path.name for path in folder.iterdir()),
        "took_s": round(took_s, 3),
    }


def _text(error: BaseException) -> str:
    """What it says, but for one known difference.

    An operator that a device lacks lists all keys that PyTorch has kernels for: ours among them.
    """
    return str(error).replace("TESTING_ONLY_GenericMode, ", "")


def _as_at_the_start() -> None:
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):  # the plugin does without, and so may a program
        import numpy as np  # noqa: PLC0415

        np.random.seed(0)
    torch._dynamo.reset()


def _where(error: BaseException) -> str:
    """Say in which of its own lines it raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [str(frame.lineno) for frame in frames if frame.filename.startswith("program_")]
    return "raised in lines " + " ".join(own)


def main(path: str, name: str, numbers: list[int]) -> None:
    """Run the programs of a kind."""
    torch.set_num_threads(1)
    kind = load(name)
    # Each collection would look at all that PyTorch's import has made, for longer than most
    # programs take.
    gc.collect()
    gc.freeze()
    with Path(path).open("a") as results:
        for number in numbers:
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            with tempfile.TemporaryDirectory(prefix="program-") as folder:
                line = run(kind, number, Path(folder))
            faulthandler.cancel_dump_traceback_later()
            results.write(json.dumps(line) + "\n")
            results.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(number) for number in sys.argv[3:]])
