"""What an agent that stands by does of a device's opening, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.agent.gpu_agent import EXTENT_BYTES, gpu_environment
from tests.native_builds import simulated_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PREPARES = """
import json, sys
from tierline_agent.config import DeviceSettings
from tierline_agent.devices.opening import open_devices, prepare

settings = [DeviceSettings.model_validate(json.loads(sys.argv[1]))]
prepare(settings)
loaded = set(sys.modules)
if len(sys.argv) > 2:
    open_devices(settings)["gpu-0"].close()
    assert set(sys.modules) == loaded, set(sys.modules) - loaded
"""


def calls(folder: Path, *arguments: str) -> dict[str, int]:
    """What such a program called of the driver, and how often."""
    report = folder / "report"
    device = {"kind": "cuda", "fast_bytes": 2 * EXTENT_BYTES, "extent_bytes": EXTENT_BYTES}
    subprocess.run(
        [sys.executable, "-c", PREPARES, json.dumps(device), *arguments],
        env={**os.environ, **gpu_environment(folder, REPORT=str(report))},
        check=True,
    )
    (line,) = report.read_text().splitlines()
    report.unlink()
    return dict(json.loads(line)["calls"])


def test_who_stands_by_starts_the_driver_and_opens_no_gpu() -> None:
    with simulated_machine() as machine:
        prepared, opened = calls(machine), calls(machine, "then open it")
    assert prepared["cuInit"] == 1
    takes = {"cuDevicePrimaryCtxRetain", "cuMemHostRegister_v2"}
    assert takes <= set(opened)
    assert not takes & set(prepared), prepared
