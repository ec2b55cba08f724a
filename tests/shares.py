"""Drawn cases by the hundred: a fixed share of them in `make test`, all in `make soak`."""

from __future__ import annotations

import os
from typing import TypeVar

ALL = "TIERLINE_ALL_CASES"
"""The variable that asks for all."""
T = TypeVar("T")


def share(some: T, all_of_them: T) -> T:
    """Return what is run now."""
    return all_of_them if os.environ.get(ALL) else some
