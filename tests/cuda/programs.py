"""C programs of the tests that run with the library preloaded, on a simulated GPU."""

from __future__ import annotations

import subprocess

import pytest
from tests.integration.agent.agent_process import AgentProcess
from tests.interposer.test_interposer import library, preload
from tests.native_builds import build

PATIENCE_S = 300


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
