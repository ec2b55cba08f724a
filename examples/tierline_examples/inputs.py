"""Inputs of the perception examples: drawn pictures and written sentences, the same every time."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw

_SENTENCES = (
    "a red car stops at the crossing and waits for two people",
    "the lane ahead is free so the truck keeps its speed",
    "rain on the windshield makes the traffic light hard to see",
    "a bicycle leaves the path on the right and enters the road",
)
_FIRST_WORD = 1000
"""Words are numbered from here, as in BERT's own vocabulary; below are its marks."""
_START, _END, _PADDING = 101, 102, 0
_SENTENCE_TOKENS = 32


def pictures(count: int, size: int) -> list[torch.Tensor]:
    """`count` pictures of a road with vehicles, (1, 3, size, size), normalised as ImageNet's."""
    return [_normalised(_scene(number, size)) for number in range(count)]


def _scene(number: int, size: int) -> Image.Image:
    random = np.random.default_rng(number)
    image = Image.new("RGB", (size, size), (120, 160, 220))
    draw = ImageDraw.Draw(image)
    horizon = size // 2
    draw.rectangle((0, horizon, size, size), fill=(90, 120, 70))
    draw.polygon(
        [(size // 2 - 8, horizon), (size // 2 + 8, horizon), (size, size), (0, size)],
        fill=(80, 80, 85),
    )
    for _ in range(3 + number):
        x, y = (int(value) for value in random.integers((0, horizon), (size - 40, size - 30)))
        colour = tuple(int(value) for value in random.integers(40, 255, 3))
        draw.rectangle((x, y, x + 36, y + 18), fill=colour)
        draw.ellipse((x + 4, y + 14, x + 12, y + 22), fill=(20, 20, 20))
        draw.ellipse((x + 24, y + 14, x + 32, y + 22), fill=(20, 20, 20))
    return image


def _normalised(image: Image.Image) -> torch.Tensor:
    pixels = np.asarray(image, dtype=np.float32) / 255.0
    pixels = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    return torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1).unsqueeze(0).contiguous()


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """`count` sentences as BERT takes them: token ids and attention mask, (1, 32) each."""
    words = sorted({word for sentence in _SENTENCES for word in sentence.split()})
    number = {word: _FIRST_WORD + index for index, word in enumerate(words)}
    batches = []
    for index in range(count):
        sentence = _SENTENCES[index % len(_SENTENCES)]
        ids = [_START, *(number[word] for word in sentence.split()), _END]
        padding = _SENTENCE_TOKENS - len(ids)
        mask = [1] * len(ids) + [0] * padding
        batches.append(
            {
                "input_ids": torch.tensor([ids + [_PADDING] * padding]),
                "attention_mask": torch.tensor([mask]),
            }
        )
    return batches
