"""A stack of layers that notes after each job what it holds, and what NVML shows: `memory.py FILE`.

Jobs that take more and give it back, and weights of 32 or of 2 MiB, several of which share a block.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pynvml
import torch
from torch import nn

import tierline
from tierline_client.launches import Launches


def main() -> None:
    """Run until the releases end."""
    is_managed = "TIERLINE_OBSERVE" not in os.environ
    width, depth = (4096, 24) if os.environ["SIZE"] == "large" else (1024, 192)
    path = Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_default_dtype(torch.half)
    with torch.device("cuda"):
        layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
    model = nn.Sequential(*layers).eval().requires_grad_(False)  # its only name is positional
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    launches = Launches()
    with path.open("a", buffering=1) as out:

        def note(job: int) -> None:
            torch.cuda.synchronize()
            seen = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
            shown = {one.pid: one.usedGpuMemory for one in seen}
            row = {"pid": os.getpid(), "job": job, "held": launches.held_bytes, "shown": shown}
            if is_managed:
                print(json.dumps(row), file=out)

        note(-1)
        for job, _ in enumerate(tierline.periodic()):
            with torch.inference_mode():
                model(torch.ones(8, width, device="cuda"))
            note(job)


main()
