"""A user's program: a small model, ordinary PyTorch, and a period kept by Tierline.

Run as `python -m tests.integration.cli.tiny_task [seed]`.
"""

import sys

import torch

import tierline

_WIDTH = 256
_DEPTH = 12  # 3 MiB of weights


def main() -> None:
    """Answer one of four inputs at each release."""
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[1]))
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_DEPTH)]
    model = torch.nn.Sequential(*layers).eval()
    inputs = [torch.randn(8, _WIDTH) for _ in range(4)]
    with torch.inference_mode():
        for release in tierline.periodic():
            model(inputs[release.index % len(inputs)])


if __name__ == "__main__":
    main()
