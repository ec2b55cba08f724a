"""Three users' programs, of which two ask for far more than there is.

Run as `python -m tests.integration.cli.overload_task best|soft|hard`. What they wait for are
conditions, so that each job comes in the middle of another, whatever else the machine does: `best`
has the device first and stands in a layer until both others wait; `soft` then takes its time in
layer after layer until `hard` has had its turn and its own deadline is over.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch

import tierline
from tierline_cli.local.admin_client import AdminClient

WIDTH = 64
DEPTH = 100
_MIDDLE = 5
_POLL_S = 0.005
_SLOW_S = 0.5
_BEGUN = "best-has-begun"
_SERVED = "hard-was-served"


class Layer(torch.nn.Module):
    """A layer that may have to wait before it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.wait: Callable[[], None] | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.wait is not None:
            self.wait()
        return cast(torch.Tensor, self.linear(values))


def _until(condition: Callable[[], bool], most_s: float = float("inf")) -> None:
    ends = time.monotonic() + most_s
    while not condition() and time.monotonic() < ends:
        time.sleep(_POLL_S)


def _others_wait(run_dir: Path) -> None:
    run_dir.joinpath(_BEGUN).touch()
    with AdminClient(run_dir / "admin.sock") as admin:
        _until(lambda: admin.call("snapshot")["snapshot"]["devices"][0]["waiting_jobs"] == 2)


def _served_and_late(run_dir: Path, deadline_ns: int) -> bool:
    return run_dir.joinpath(_SERVED).exists() and time.monotonic_ns() > deadline_ns


def prepare(role: str, run_dir: Path, layers: list[Layer], deadline_ns: int) -> None:
    """Wait for the moment at which the job is to ask for the device; say where it is to stand."""
    if role == "best":
        layers[_MIDDLE].wait = partial(_others_wait, run_dir)
        return
    _until(run_dir.joinpath(_BEGUN).exists)
    if role == "soft":
        for layer in layers[_MIDDLE:]:
            layer.wait = partial(_until, partial(_served_and_late, run_dir, deadline_ns), _SLOW_S)


def main(role: str) -> None:
    """Answer the releases; only counted jobs of a managed run wait for each other."""
    torch.set_num_threads(1)
    torch.manual_seed(ord(role[0]))
    layers = [Layer() for _ in range(DEPTH)]
    model = torch.nn.Sequential(*layers).eval()
    values = torch.randn(8, WIDTH)
    socket = os.environ.get("TIERLINE_SOCKET")
    with torch.inference_mode():
        for release in tierline.periodic():
            if socket is None or release.warmup:
                model(values)
                continue
            run_dir = Path(socket).parents[2]
            prepare(role, run_dir, layers, release.deadline_ns)
            model(values)
            if role == "hard":
                run_dir.joinpath(_SERVED).touch()


if __name__ == "__main__":
    main(sys.argv[1])
