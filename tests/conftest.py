"""For all tests: nothing outlives a run, however it ends; and what takes long begins first."""

from __future__ import annotations

import os
import sys

import pytest
from tests import guard

LONG = (
    "tests/programs",
    "tests/integration/cli",
    "tests/integration/agent/hostile/test_behaviours",
    "tests/integration/agent/hostile/test_hostile",
    "tests/integration/agent/hostile/test_session_machine",
    "tests/integration/operator",
    "tests/integration/torch",
    "tests/devdax",
    "tests/cuda",
    "tests/native",
    "tests/interposer",
    "tests/integration/agent",
)
"""Files and folders, the longest first: at the end of a run no process works alone for minutes."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's own processes belong to their run
        # Each agent, each `tierline` and each program with PyTorch starts in half the time.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        guard.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    return next((n for n, part in enumerate(LONG) if item.nodeid.startswith(part)), len(LONG))
