"""For all tests: nothing outlives a run, however it ends; what takes long begins first; and what
fails is said at once, as a run of forty minutes may be ended before its summary."""

from __future__ import annotations

import os
import sys

import pytest
from tests import guard
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

LONG = (
    "tests/integration/operator",
    "tests/programs",
    "tests/integration/cli",
    "tests/integration/agent/hostile/test_behaviours",
    "tests/integration/agent/hostile/test_hostile",
    "tests/integration/agent/hostile/test_session_machine",
    "tests/integration/torch",
    "tests/devdax",
    "tests/cuda",
    "tests/native",
    "tests/interposer",
    "tests/integration/agent",
)
"""Files and folders, the longest first: at the end of a run no process works alone for minutes."""
SHARING = ("tests/chart/", "tests/integration/kubernetes/", "tests/integration/operator/")
"""Folders whose files share API servers; one process runs all tests of such a folder."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's own processes belong to their run
        # Each agent, each `tierline` and each program with PyTorch starts in half the time.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        guard.start()
        config.pluginmanager.register(_Failures(config))


class _Failures:
    """Says each failed test when it fails, by name and in one line, like the summary at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            word = "FAILED" if report.when == "call" else "ERROR"
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(crash.message if crash else report.longreprtext).partition("\n")[0]
            terminal.write("\n")
            terminal.write_line(f"{word} {report.nodeid} - {why}"[:200])


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # no types
    """Gives a process a whole file, or a folder whose files share what takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        return next(
            (part for part in SHARING if nodeid.startswith(part)), nodeid.split("::", maxsplit=1)[0]
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    return next((n for n, part in enumerate(LONG) if item.nodeid.startswith(part)), len(LONG))
