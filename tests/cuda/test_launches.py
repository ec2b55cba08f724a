"""The Python binding for launches, in a process that has the library preloaded."""

from __future__ import annotations

import sys

import pytest
from tests.interposer.test_interposer import library, preload
from tests.native_builds import ROOT, build, run, simulated_machine


@pytest.mark.slow
def test_reads_and_times_are_those_of_the_launches() -> None:
    with simulated_machine() as machine:
        run(
            *(sys.executable, str(ROOT / "tests" / "cuda" / "launches_check.py")),
            env={
                "LD_LIBRARY_PATH": str(build("plain") / "interposer-tests" / "simcuda"),
                "LD_PRELOAD": preload("plain", library("plain")),
                "SIMCUDA_STATE": str(machine),
                "SIMCUDA_LATE": "1",
                "TIERLINE_LIBRARY": library("plain"),
            },
        )
