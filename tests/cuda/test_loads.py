"""The agent's copies outside its streams, when the driver refuses a call in the middle of one."""

import sys

import pytest
from tests.native_builds import ROOT, run, simulated_driver, simulated_machine


@pytest.mark.slow
def test_a_copy_that_fails_is_over_before_its_source_is_used_again() -> None:
    with simulated_machine() as machine:
        run(
            *(sys.executable, str(ROOT / "tests" / "cuda" / "loads_check.py")),
            str(machine / "faults"),
            env={
                "LD_LIBRARY_PATH": str(simulated_driver("plain")),
                "SIMCUDA_STATE": str(machine / "machine"),
                "SIMCUDA_LATE": "1",
                "SIMCUDA_FAULT_FILE": str(machine / "faults"),
                "SIMCUDA_H2D": "20Mi",
            },
        )
