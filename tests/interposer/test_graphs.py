"""Runs the planner's model and the programs with graphs that stream, plain and sanitized.

What they check stands in plan_test.c and gates_test.c. Each graph scenario runs through rings of
two lengths: the shortest that holds the largest weight, and one in which the agent can run ahead.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interposer.test_interposer import scenarios
from tests.native_builds import FLAVOURS, WITHOUT_THREADS, build, run, simulated_machine


def programs(flavour: str) -> Path:
    """The folder of the test programs."""
    return build(flavour) / "interposer-tests"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", WITHOUT_THREADS)
def test_no_schedule_of_a_planned_graph_hangs_or_reads_what_is_gone(flavour: str) -> None:
    run(str(programs(flavour) / "plan_test"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("scenario", scenarios("gates_test"))
def test_graphs_stream(flavour: str, slots: int, scenario: str) -> None:
    folder = programs(flavour)
    with simulated_machine() as machine:
        run(
            *(str(folder / "gates_test"), scenario, str(slots)),
            env={
                "LD_LIBRARY_PATH": str(folder / "simcuda"),
                "SIMCUDA_STATE": str(machine),
                "SIMCUDA_LATE": "1",
                "SIMCUDA_MEMORY": "128Mi",
                "ASAN_OPTIONS": "detect_leaks=1",
            },
        )
