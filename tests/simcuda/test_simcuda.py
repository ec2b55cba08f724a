"""Builds the simulated CUDA driver plain and sanitized; runs its tests and NVIDIA's bindings.

The C tests are the specification (tests/simcuda/*_test.c); here each flavour is one ctest run. The
agent talks to the driver through `cuda-bindings`, so one more test drives the library through them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_builds import FLAVOURS, ROOT, run, simulated_driver, simulated_machine, tool


@pytest.fixture
def machine_folder() -> Iterator[Path]:
    """The state of simulated machines."""
    with simulated_machine() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_c_programs_pass(flavour: str, machine_folder: Path) -> None:
    folder = simulated_driver(flavour)
    listing = json.loads(
        run(tool("ctest"), "--test-dir", str(folder), "--show-only=json-v1").stdout
    )
    programs = {source.stem for source in (ROOT / "tests" / "simcuda").glob("*_test.c")}
    assert {test["name"] for test in listing["tests"]} == programs
    run(
        *(tool("ctest"), "--test-dir", str(folder), "--output-on-failure"),
        env={"KIT_FOLDER": str(machine_folder)},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nvidias_bindings_drive_the_library(machine_folder: Path) -> None:
    folder = simulated_driver("plain")
    report = machine_folder / "report"
    run(
        *(sys.executable, str(ROOT / "tests" / "simcuda" / "bindings_check.py")),
        env={
            "LD_LIBRARY_PATH": str(folder),
            "SIMCUDA_STATE": str(machine_folder / "machine"),
            "SIMCUDA_MEMORY": "64Mi",
            "SIMCUDA_DEVICES": "2",
            "SIMCUDA_H2D": "500Mi",
            "SIMCUDA_REPORT": str(report),
        },
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) == 2, "the agent and its client each write a line"
    assert all(line["unsupported"] == [] for line in lines)
    assert all(line["calls"]["cuStreamWaitValue32_v2"] > 0 for line in lines)


TOTAL_MEMORY = """
import ctypes, sys
library, total = ctypes.CDLL(sys.argv[1]), ctypes.c_size_t()
library.cuInit(0)  # the second call must answer as the first
answer = library.cuInit(0) or library.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(answer, total.value)
"""


def total_memory(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Ask a fresh process for the device's memory: 'CUresult bytes'."""
    return subprocess.run(
        [sys.executable, "-c", TOTAL_MEMORY, str(folder / "libcuda.so.1")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param({"SIMCUDA_BANDWIDTH": "1"}, "no setting 'BANDWIDTH'", id="unknown key"),
        pytest.param({"SIMCUDA_H2D": "fast"}, "'fast' is not a count", id="no number"),
        pytest.param({"SIMCUDA_DEVICES": "99"}, "between 1 and 8", id="out of range"),
        pytest.param({"SIMCUDA_GRANULARITY": "96Ki"}, "no power of two", id="odd granularity"),
        pytest.param({"SIMCUDA_CONFIG": "/nonexistent"}, "cannot read", id="missing file"),
        pytest.param({"SIMCUDA_FAULTS": "call cuNo 1 UNKNOWN"}, "the fault", id="unknown call"),
        pytest.param({"SIMCUDA_FAULTS": "hold cuNo 1 /x"}, "the fault", id="unknown held call"),
        pytest.param({"SIMCUDA_FAULTS": "hold cuInit 1 here"}, "the fault", id="no whole path"),
        pytest.param({"SIMCUDA_FAULTS": "link h2d 0 0"}, "the fault", id="stopped link"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(
    settings: dict[str, str], sentence: str, machine_folder: Path
) -> None:
    env = {"SIMCUDA_STATE": str(machine_folder / "machine"), **settings}
    done = total_memory(simulated_driver("plain"), env)
    assert done.stdout.split()[0] == "1", "cuInit answers CUDA_ERROR_INVALID_VALUE"
    assert sentence in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_settings_come_from_a_file_and_the_environment_wins(machine_folder: Path) -> None:
    settings = machine_folder / "settings"
    settings.write_text("# a small device\nmemory = 32Mi\nname = From a file\n")
    folder = simulated_driver("plain")
    env = {"SIMCUDA_STATE": str(machine_folder / "machine"), "SIMCUDA_CONFIG": str(settings)}
    assert total_memory(folder, env).stdout.split() == ["0", str(32 << 20)]
    env["SIMCUDA_MEMORY"] = "48Mi"
    assert total_memory(folder, env).stdout.split() == ["0", str(48 << 20)]
