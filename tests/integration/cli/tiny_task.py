"""A user's program: a small model, ordinary PyTorch, and a period kept by Tierline.

Run as `python -m tests.integration.cli.tiny_task SEED [WIDTH]`.
"""

import sys

import torch

import tierline

_WIDTH = 256
_DEPTH = 12  # 3 MiB of weights


def layers(width: int = _WIDTH) -> list[torch.nn.Linear]:
    """Of random weights."""
    return [torch.nn.Linear(width, width) for _ in range(_DEPTH)]


def main() -> None:
    """Answer one of four inputs at each release."""
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[1]))
    width = int(sys.argv[2]) if len(sys.argv) > 2 else _WIDTH
    model = torch.nn.Sequential(*layers(width)).eval()
    inputs = [torch.randn(8, width) for _ in range(4)]
    with torch.inference_mode():
        for release in tierline.periodic():
            model(inputs[release.index % len(inputs)])


if __name__ == "__main__":
    main()
