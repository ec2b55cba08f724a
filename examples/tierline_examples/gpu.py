"""ResNet-101 in fp16 on a GPU, periodically: `python -m tierline_examples.gpu`.

Nothing in it is Tierline's but the loop that keeps the period.
"""

from __future__ import annotations

import torch

import tierline
from tierline_examples.perception import resnet


def main() -> None:
    """Look at one picture a period."""
    torch.manual_seed(7)
    model, inputs = resnet()
    model.eval().half().to("cuda")
    pictures = [one["pixel_values"].half().cuda() for one in inputs]
    with torch.inference_mode():
        for release in tierline.periodic(1.0):
            model(pictures[release.index % len(pictures)])


if __name__ == "__main__":
    main()
