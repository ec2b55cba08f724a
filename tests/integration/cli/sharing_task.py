"""Two user's programs of which the short job always comes in the middle of the long one.

Run as `python -m tests.integration.cli.sharing_task long|short`. What they wait for is a condition:
the long job stands in a layer until the agent says that the short one waits for the device.
"""

import os
import sys
import time
from pathlib import Path
from typing import cast

import torch

import tierline
from tierline_cli.admin_client import AdminClient

_WIDTH = 256
_DEPTH = 16
_MIDDLE = 5
_LAYER_S = 0.01
_POLL_S = 0.005
_BEGUN = "long-has-begun"


class Layer(torch.nn.Module):
    """A layer that takes about as long as its neighbours, whatever else the machine does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(_WIDTH, _WIDTH)
        self.waits = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(_LAYER_S)
        if self.waits:
            self._wait_for_the_other()
        return cast(torch.Tensor, self.linear(values))

    def _wait_for_the_other(self) -> None:
        run_dir = Path(os.environ["TIERLINE_SOCKET"]).parents[2]
        (run_dir / _BEGUN).touch()
        with AdminClient(run_dir / "admin.sock") as admin:
            while not admin.call("snapshot")["snapshot"]["devices"][0]["waiting_jobs"]:
                time.sleep(_POLL_S)


def main(role: str) -> None:
    """Answer the releases; only counted jobs of a managed run wait for each other."""
    torch.set_num_threads(1)
    torch.manual_seed(len(role))
    layers = [Layer() for _ in range(_DEPTH if role == "long" else 2)]
    model = torch.nn.Sequential(*layers).eval()
    values = torch.randn(8, _WIDTH)
    managed = "TIERLINE_SOCKET" in os.environ
    with torch.inference_mode():
        for release in tierline.periodic():
            if managed and not release.warmup:
                if role == "long":
                    layers[_MIDDLE].waits = True
                else:
                    begun = Path(os.environ["TIERLINE_SOCKET"]).parents[2] / _BEGUN
                    while not begun.exists():
                        time.sleep(_POLL_S)
            model(values)


if __name__ == "__main__":
    main(sys.argv[1])
