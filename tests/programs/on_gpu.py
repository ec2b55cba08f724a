"""Kind `gpu`: the programs of the generator with PyTorch's default device a GPU, and wider layers.

    tests/gpu/site.sh python3 -m tests.programs --kind gpu --count 200 --batch 40

A program that has spoilt the context ends the process: those after it begin with another one.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch
from tests.programs import generated
from tests.programs.generated import numbers, tags, unordered
from tests.programs.kinds import Say

__all__ = ["numbers", "run", "tags", "unordered"]
WIDER = 8
"""Weights of up to 9 MiB a layer."""


def run(number: int, say: Say, folder: Path) -> None:
    """Run it on the current GPU."""
    torch.set_default_device("cuda")
    try:
        generated.run(number, say, folder, wider=WIDER)
    finally:
        torch.set_default_device(None)
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            traceback.print_exc()
            os._exit(7)
