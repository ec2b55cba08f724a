"""Kinds of programs: each has a program for every number, and says what it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

KINDS = {
    "programs": "tests.programs.generated",
    "modules": "tests.programs.modules",
    "zoo": "tests.programs.zoo",
    "forks": "tests.programs.forks",
    "gpu": "tests.programs.on_gpu",
}


class Say(Protocol):
    """Keeps what a program can see."""

    def __call__(self, *values: object) -> None: ...


class Kind(Protocol):
    """A module that has these."""

    def numbers(self, first: int, count: int) -> list[int]: ...

    def tags(self, number: int) -> tuple[str, ...]: ...

    def unordered(self, number: int) -> bool: ...

    def run(self, number: int, say: Say, folder: Path) -> None: ...


def load(name: str) -> Kind:
    """Return a kind; it may load libraries for seconds."""
    return cast("Kind", import_module(KINDS[name]))
