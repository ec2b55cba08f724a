"""Kind `programs`: number N is the program that the generator makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import torch
from tests.programs.generator import generate
from tests.programs.kinds import Say


def numbers(first: int, count: int) -> list[int]:
    """Return so many numbers."""
    return list(range(first, first + count))


def tags(number: int) -> tuple[str, ...]:
    """Return which pieces it has."""
    return generate(number).tags


def unordered(number: int) -> bool:
    """Say whether it says things in any order."""
    return generate(number).unordered


def run(number: int, say: Say, folder: Path, wider: int = 1) -> None:
    """Run it, as a module of its own; its layers are so many times as wide."""
    name = f"program_{number}"
    module = ModuleType(name)
    vars(module).update(folder=folder, given=_given, say=say)
    sys.modules[name] = module
    try:
        exec(compile(generate(number, wider).source, name, "exec"), vars(module))  # noqa: S102
    finally:
        del sys.modules[name]
        vars(module).clear()


def _given(i: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(1000 + i % 4)
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device())
