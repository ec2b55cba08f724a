"""A program of one of the sets: layers that take a fixed time of the processor.

    python -m tests.crowd.faults.program ROLE MILLISECONDS LOG

`pair` runs two models in each release, `block` the same two within one `tierline.job`, `crops` one
model four times, `long` one of a single layer. Jobs of a managed run are logged (tests.crowd.log).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from tests.crowd.log import Log

import tierline

_WIDTH = 512
_LAYERS = 8
_CROPS = 4


class Part(torch.nn.Module):
    """A layer that takes so many seconds in all."""

    def __init__(self, seconds: float, log: Log) -> None:
        super().__init__()
        self.weights = torch.nn.Linear(_WIDTH, _WIDTH)
        self.seconds = seconds
        self.log = log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the device away, if at all, before the weights are read."""
        x = self.weights(x)
        began_ns = time.monotonic_ns()
        end_ns = began_ns + self.seconds * 1e9
        while time.monotonic_ns() < end_ns:
            pass
        self.log.layer(began_ns)
        return x


def model(milliseconds: float, log: Log, layers: int = _LAYERS) -> torch.nn.Module:
    """A model that computes for so long."""
    parts = (Part(milliseconds / layers / 1e3, log) for _ in range(layers))
    return torch.nn.Sequential(*parts).eval()


def main(role: str, milliseconds: float, path: Path) -> None:
    """Run until the releases end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = Log(path if "TIERLINE_SOCKET" in os.environ else None)
    if role in ("pair", "block"):
        models = [model(milliseconds / 2, log), model(milliseconds / 2, log)]
    elif role == "crops":
        models = [model(milliseconds, log)] * _CROPS
    else:
        models = [model(milliseconds, log, layers=1)]
    x = torch.randn(1, _WIDTH)
    jobs = [models] if role == "block" else [[one] for one in models]
    with torch.inference_mode():
        for release in tierline.periodic():
            for parts in jobs:
                due_ns, counts = release.deadline_ns, not release.warmup
                together = tierline.job(name="both") if role == "block" else nullcontext()
                with log.job(release.release_ns, due_ns, counts=counts), together:
                    for one in parts:
                        one(x)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
