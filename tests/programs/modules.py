"""Kind `modules`: number N is the N-th entry of PyTorch's own database of modules.

Each sample of its inputs goes into a module of its own, several times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.programs.kinds import Say
from torch.testing._internal.common_modules import module_db

JOBS = 4
SAMPLES = 6
"""Of an entry; they differ in arguments of the constructor."""


def numbers(first: int, count: int) -> list[int]:
    """Return so many numbers, as far as there are entries."""
    return list(range(len(module_db)))[first : first + count]


def tags(number: int) -> tuple[str, ...]:
    """Return its name."""
    return (str(module_db[number].name),)


def unordered(number: int) -> bool:
    """Say that it says things in order."""
    return False


def run(number: int, say: Say, folder: Path) -> None:
    """Run every sample."""
    entry = module_db[number]
    samples = entry.module_inputs_func(
        entry, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    )
    for sample in list(samples)[:SAMPLES]:
        given = sample.constructor_input
        torch.manual_seed(number)
        module = entry.module_cls(*given.args, **given.kwargs).eval()
        calls: list[int] = []
        module.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        for _ in range(JOBS):
            say(_answer(module, sample.forward_input))
        say(len(calls), dict(module.state_dict()))


def _answer(module: torch.nn.Module, given: Any) -> object:
    if given is None:
        return None
    torch.manual_seed(0)
    with torch.inference_mode():
        try:
            return module(*given.args, **given.kwargs)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:80]}"
