"""A periodic task of the GPU tests: one model, one job a release.

python -m tests.gpu.periodic MODEL
"""

from __future__ import annotations

import argparse

import torch
from tests.gpu.models import MODELS, make

import tierline


def main() -> None:
    """Run the model at every release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = make(arguments.model)
    with torch.inference_mode():
        for _ in tierline.periodic(1.0):
            shape.model(*shape.inputs)


if __name__ == "__main__":
    main()
