"""The process of many programs: `python -m tests.programs.running FILE SEED...`.

For each program it writes a line of JSON to FILE: everything that it said, printed and raised.
A program that takes longer than PATIENCE_S ends the process; who started it goes on with the next.
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
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch._dynamo
from tests.programs.generator import Program, generate
from tests.programs.seen import seen

PATIENCE_S = 40
"""A program takes a second at most; a busy machine, and threads that wait for each other's looks."""


def run(program: Program, folder: Path) -> dict[str, Any]:
    """Run a program, and return what could be seen of it."""
    said: list[str] = []
    printed = io.StringIO()
    name = f"program_{program.seed}"
    module = ModuleType(name)
    names = {
        "folder": folder,
        "given": _given,
        "say": lambda *values: said.append(" ".join(map(seen, values))),
    }
    vars(module).update(names)
    sys.modules[name] = module
    _as_at_the_start()
    begin = time.monotonic()
    raised = ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program.source, name, "exec"), vars(module))  # noqa: S102
    except BaseException as error:  # a program may raise what it likes
        raised = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        said.append(_where(error, name))
    took_s = time.monotonic() - begin
    del sys.modules[name]
    vars(module).clear()
    gc.collect()
    return {
        "seed": program.seed,
        "said": sorted(said) if program.unordered else said,
        "printed": printed.getvalue(),
        "raised": raised,
        "files": sorted(path.name for path in folder.iterdir()),
        "took_s": round(took_s, 3),
    }


def _given(i: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 + i % 4))


def _as_at_the_start() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what old programs use
    torch._dynamo.reset()


def _where(error: BaseException, name: str) -> str:
    """Say in which of its own lines it raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return "raised in lines " + " ".join(str(f.lineno) for f in frames if f.filename == name)


def main(path: str, seeds: list[int]) -> None:
    torch.set_num_threads(1)
    with Path(path).open("a") as results:
        for seed in seeds:
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            with tempfile.TemporaryDirectory(prefix="program-") as folder:
                line = run(generate(seed), Path(folder))
            faulthandler.cancel_dump_traceback_later()
            results.write(json.dumps(line) + "\n")
            results.flush()


if __name__ == "__main__":
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]])
