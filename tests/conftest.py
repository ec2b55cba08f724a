"""For all tests: nothing outlives a run, however it ends; and what takes long begins first.

With `--dist loadgroup` the tests of a file run in one process, one after another, and those that
need a control plane all in the same one: it is started once.
"""

from __future__ import annotations

import pytest
from tests import guard

PLANES = {"api_server", "control_plane"}
LONG = (
    "tests/programs",
    "tests/integration/cli",
    "tests/integration/agent/test_behaviours",
    "tests/integration/agent/test_hostile",
    "tests/integration/agent/test_session_machine",
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
        guard.start()


@pytest.hookimpl(tryfirst=True)  # before xdist, which takes the groups over
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        shared = PLANES & set(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("kubernetes" if shared else item.location[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if PLANES & set(getattr(item, "fixturenames", ())):
        return -1
    return next((n for n, part in enumerate(LONG) if item.nodeid.startswith(part)), len(LONG))
