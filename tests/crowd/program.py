"""Programs of the kinds that share a device: what each does between one release and the next.

    python -m tests.crowd.program ROLE DEVICE SEED FOLDER

`one` runs a model; `two` runs two, one on what the other gave; `tokens` generates sixteen tokens, a
forward each; `requests` has no releases of its own and asks far more often than its period allows;
`restarting` ends every few seconds without a word, as a crash does, and is started again by
tests.crowd.restarting. Each appends a line for every release that counts to a file of its own in
FOLDER: when it was released, when its last forward had ended and when that was due, in nanoseconds
of the monotonic clock. The file is a log that the agent has no part in.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from tests.crowd.restarting import AGAIN

import tierline

TOKENS = 16
_WIDTHS = {"cpu": 256, "cuda": 2048}
_DEPTH = 12  # 3 MiB of weights on a CPU, 192 MiB on a GPU
_ROWS = 8
_LIVES_S = 4.0
_REQUESTS_S = 0.1

Step = Callable[[int], None]


class Generator(torch.nn.Module):
    """Names the next token of what it has read so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, width)
        self.body = _layers(width)
        self.head = torch.nn.Linear(width, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        read = self.body(self.embed(tokens)).cumsum(0)
        found: torch.Tensor = self.head(read[-1]).argmax()
        return found


def _layers(width: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(_DEPTH)))


def step_of(role: str) -> Step:
    """What a program does at a release, whose number chooses the input."""
    width = _WIDTHS[torch.get_default_device().type]
    if role == "tokens":
        generator = Generator(width).eval()

        def generate(index: int) -> None:
            tokens = torch.tensor([index % 4])
            for _ in range(TOKENS):
                tokens = torch.cat([tokens, generator(tokens)[None]])

        return generate
    models = [_layers(width).eval() for _ in range(2 if role == "two" else 1)]
    inputs = [torch.randn(_ROWS, width) for _ in range(4)]

    def run(index: int) -> None:
        values = inputs[index % len(inputs)]
        for model in models:
            values = model(values)

    return run


def _periodic(role: str, log: Path) -> None:
    step = step_of(role)
    begun = time.monotonic()
    managed = "TIERLINE_SOCKET" in os.environ
    with log.open("a", buffering=1) as file:
        for release in tierline.periodic():
            if role == "restarting" and managed and time.monotonic() - begun > _LIVES_S:
                os._exit(AGAIN)
            step(release.index)
            if managed and not release.warmup:
                now = time.monotonic_ns()
                file.write(f"{release.release_ns} {now} {release.deadline_ns}\n")


def main(role: str, device: str, seed: int, folder: Path) -> None:
    """Run until the releases end, or for ever."""
    torch.set_num_threads(1)
    torch.set_default_device(device)
    torch.manual_seed(seed)
    with torch.inference_mode():
        if role == "requests":
            step = step_of(role)
            for index in count():
                step(index)
                time.sleep(_REQUESTS_S)
        else:
            _periodic(role, folder / f"{role}-{seed}.log")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
