"""For all tests: nothing outlives a run, however it ends."""

from __future__ import annotations

import pytest
from tests import guard


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's own processes belong to their run
        guard.start()
