"""A task's program: a model of PyTorch at every release, and a digest of each job's output.

    python -m tests.gpu_e2e.program MODEL --period SECONDS [--jobs N]

Ordinary PyTorch; what it is to Tierline comes from its environment. Run without that it is the
reference: the same digest must come out of every job of a streamed one. It prints a line of JSON
with what it is, and then one a job: its number, the digest, the milliseconds from its release to
its output, and whether that was after its deadline, by the program's own clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from tests.gpu.models import MODELS, first_tensor, make

import tierline

_PAUSE_S = 0.05


def digest(output: object) -> str:
    """A digest of all bytes of an output."""
    raw = first_tensor(output).contiguous().view(torch.uint8).cpu().numpy()
    return hashlib.blake2b(raw.tobytes(), digest_size=16).hexdigest()


def driver() -> str:
    """The file of the GPU driver's library in this process; empty if there is none."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith("libcuda.so"):
            return path
    return ""


def main() -> None:
    """Run the model at every release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--period", type=float, required=True)
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    shape = make(arguments.model)
    model = tierline.captured(shape.model)
    about = {
        "model": arguments.model,
        "weight_bytes": shape.weight_bytes,
        "device": str(next(shape.model.parameters()).device),
        "torch": torch.__version__,
        "uid": os.getuid(),
        "made_s": round(time.monotonic() - began, 2),
    }
    with torch.inference_mode():
        for release in tierline.periodic(arguments.period, jobs=arguments.jobs):
            output = digest(model(*shape.inputs))
            ended_ns = time.monotonic_ns()
            if about:
                print(json.dumps({**about, "driver": driver()}), flush=True)
                about = {}
            if not release.warmup:
                took_ms = (ended_ns - release.release_ns) / 1e6
                late = " late" if ended_ns > release.deadline_ns else ""
                print(f"job {release.index} {output} {took_ms:.3f}{late}", flush=True)
        while "TIERLINE_PLANNED" in os.environ:
            # Measured: it goes on until its plan is there, which then starts it again.
            model(*shape.inputs)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
