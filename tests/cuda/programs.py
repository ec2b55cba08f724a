"""C programs of the tests that run with the library preloaded, on a simulated GPU."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.interposer.test_interposer import library, preload
from tests.native_builds import build

PATIENCE_S = 300
_started: list[subprocess.Popen[str]] = []


def end_those_left() -> None:
    """Kill the programs of a test that failed; others have ended."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def left(agent: AgentProcess, name: str) -> dict[str, Any]:
    """What is known of a task when its program has left: all that it said has been heard by then.

    The last jobs are told when they are over, and nobody waits for that.
    """
    wait_until(lambda: not agent.task(name)["clients"], "its program has left")
    return agent.task(name)


class Running:
    """One running scenario of a program, which says `held` at its end if all its claims did."""

    def __init__(
        self, agent: AgentProcess, flavour: str, program: str, *arguments: str, **settings: str
    ) -> None:
        folder = build(flavour) / "interposer-tests"
        self.process = subprocess.Popen(
            [str(folder / "cuda-tests" / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **agent.environment,
                "LD_LIBRARY_PATH": str(folder / "simcuda"),
                "LD_PRELOAD": preload(flavour, library(flavour)),
                "ASAN_OPTIONS": "detect_leaks=0",
                "TSAN_OPTIONS": "halt_on_error=1",
                **settings,
            },
        )
        _started.append(self.process)

    def ends(self) -> tuple[str, str]:
        """Wait for the end; every claim held. Returns what it said, and what it complained of."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"it hangs: {self.process.communicate()}")
        assert self.process.returncode == 0, (out, err)
        assert out.endswith("held\n")
        return out, err
