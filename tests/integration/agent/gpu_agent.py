"""The real agent on simulated GPUs, for any test that wants one.

    with simulated_machine() as machine, gpu_agent(tmp_path, machine) as agent:
        agent.register("vision", gpu_plan(12))
        program = agent.program("vision", seed, 12, GPU_PROGRAM)

`agent.environment` is what another process needs to see the same GPUs. Extents are 2 MiB here, the
granularity of device memory. With TIERLINE_TESTS_ON_GPU in the environment the GPUs are the
machine's own (tests/gpu/checks/agent.py).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.agent.agent_process import AgentProcess, ProgramKind, plan
from tests.native_builds import simulated_driver

EXTENT_BYTES = 2 << 20
GPU_PROGRAM = ProgramKind("tests.integration.agent.gpu_program", EXTENT_BYTES)
gpu_plan = functools.partial(plan, extent_bytes=EXTENT_BYTES)


def gpu_environment(machine: Path, **settings: str) -> dict[str, str]:
    """What shows a process the GPUs with their state in `machine`; settings as in simcuda.h.

    Work ends late, unless the settings say LATE="0".
    """
    if "TIERLINE_TESTS_ON_GPU" in os.environ:
        return {}
    return {
        "LD_LIBRARY_PATH": str(simulated_driver("plain")),
        "SIMCUDA_STATE": str(machine / "machine"),
        "SIMCUDA_FAULT_FILE": str(machine / "faults"),
        "SIMCUDA_LATE": "1",
        **{f"SIMCUDA_{name}": value for name, value in settings.items()},
    }


@contextmanager
def gpu_agent(
    folder: Path,
    machine: Path,
    fast_extents: int = 24,
    gpu: dict[str, str] | None = None,
    tiers: Collection[str] = ("dram",),
    **settings: Any,
) -> Iterator[AgentProcess]:
    """An agent of one GPU, with some of the tiers dram, pmem (both mapped) and nvme (a file).

    `gpu` are settings of the simulated driver, `settings` those of the agent.
    """
    known = [
        {"name": "dram", "path": str(machine / "dram"), "size_bytes": 96 << 20},
        {"name": "pmem", "path": str(machine / "pmem"), "size_bytes": 48 << 20},
        {"name": "nvme", "path": str(folder / "nvme"), "size_bytes": 48 << 20},
    ]
    device = {
        "kind": "cuda",
        "fast_bytes": fast_extents * EXTENT_BYTES,
        "extent_bytes": EXTENT_BYTES,
    }
    process = AgentProcess(
        folder,
        environment=gpu_environment(machine, **(gpu or {})),
        tiers=[tier for tier in known if tier["name"] in tiers],
        **{"device": device, **settings},
    )
    process.start()
    try:
        yield process
    finally:
        status = process.stop()
    assert status in (0, -9), process.log.read_text()
