"""A loop that trains a small vision transformer: `python -m tierline_examples.training`.

The architecture is Hugging Face's, with random weights from a fixed seed; the pictures are made, a
square of another colour for each class. There is nothing of Tierline in it. `--steps 100` ends it.
"""

from __future__ import annotations

import argparse
import sys
from itertools import count, islice

import torch
from transformers import ViTConfig, ViTForImageClassification

_SEED = 7
_CLASSES = 10
_BATCH = 16
_SIZE = 64


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and their classes, the same for each number."""
    chance = torch.Generator().manual_seed(number)
    labels = torch.randint(0, _CLASSES, (_BATCH,), generator=chance)
    pictures = torch.rand(_BATCH, 3, _SIZE, _SIZE, generator=chance)
    pictures[:, 0, 16:48, 16:48] += labels[:, None, None] / _CLASSES
    return pictures, labels


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser(prog="tierline_examples.training", description=__doc__)
    parser.add_argument("--steps", type=int, default=sys.maxsize)
    steps = parser.parse_args().steps
    torch.manual_seed(_SEED)
    config = ViTConfig(
        image_size=_SIZE,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        hidden_dropout_prob=0.1,
    )
    config.num_labels = _CLASSES
    model = ViTForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for pictures, labels in islice(map(batch, count()), steps):
        loss = model(pictures, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
