"""A program with a slow model: `python slow_start.py LAYERS SECONDS JOBS WHEN`.

Each of its layers takes so long, after JOBS jobs in which none does; the first two are those in
which it is learned. Then it has two slow ones. WHEN is `called`, or `waited`: then a call of a
layer returns at once, and its work takes place when the device is waited for, as a GPU's.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

from tierline_torch.learning.survey import ModuleSurvey


class Model(nn.Module):
    """Layers that take a time."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.seconds = 0.0
        self.given_s = 0.0

    def finish(self) -> bool:
        """Do what was called for."""
        given_s, self.given_s = self.given_s, 0.0
        time.sleep(given_s)
        return True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after another."""
        for layer in self.layers:
            self.given_s += self.seconds
            if sys.argv[4] == "called":
                self.finish()
            x = layer(x)
        return x


if __name__ == "__main__":
    model = Model(int(sys.argv[1])).eval()
    ModuleSurvey.finish = lambda _: model.finish()  # type: ignore[method-assign,assignment]
    with torch.inference_mode():
        for _ in range(int(sys.argv[3])):
            model(torch.ones(1, 8))
        model.seconds = float(sys.argv[2])
        print("begins", flush=True)
        for _ in range(2):
            model(torch.ones(1, 8))
    print("began", flush=True)
