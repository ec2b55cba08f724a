"""Small nets of every kind that plans meet, and steps of them as `tierline fit` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = tuple[nn.Module, tuple[torch.Tensor, ...], Callable[[Any], torch.Tensor]]


class Convolutions(nn.Module):
    """Residual blocks of convolution, BatchNorm and in-place ReLU."""

    def __init__(self, width: int = 16, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> Any:
        found = functional.relu(self.stem(images), inplace=True)
        for block in self.blocks:
            found = found + block(found)
        return self.head(found.mean((2, 3)))


class Block(nn.Module):
    """Attention and a feed-forward part, each with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        batch, length, width = found.shape
        parts = self.project(self.first(found)).view(batch, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = seen.transpose(1, 2).reshape(batch, length, width)
        found = found + functional.dropout(self.out(seen), self.dropout, self.training)
        more = self.down(functional.gelu(self.up(self.second(found))))
        return found + functional.dropout(more, self.dropout, self.training)


class Language(nn.Module):
    """An embedding whose weight the last layer has, too, and blocks between them."""

    def __init__(self, width: int = 32, blocks: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> Any:
        found = self.words(words)
        for block in self.blocks:
            found = block(found)
        return self.head(found)


def convolutions(device: str = "cpu") -> Step:
    """Images and their classes."""
    with torch.device(device):
        classes = torch.zeros(4, dtype=torch.long)
        return (
            Convolutions(),
            (torch.zeros(4, 3, 16, 16),),
            lambda found: functional.cross_entropy(found, classes),
        )


def language(device: str = "cpu", dropout: float = 0.0) -> Step:
    """Words, and the ones that follow."""
    with torch.device(device):
        words = torch.zeros(2, 16, dtype=torch.long)
        return (
            Language(dropout=dropout),
            (words,),
            lambda found: functional.cross_entropy(found.view(-1, 100), words.view(-1)),
        )


def on_meta() -> Step:
    """Without memory."""
    return convolutions("meta")


def large_on_meta() -> Step:
    """More activations than a machine has."""
    with torch.device("meta"):
        classes = torch.zeros(4096, dtype=torch.long)
        return (
            Convolutions(256, 8),
            (torch.zeros(4096, 3, 224, 224),),
            lambda found: functional.cross_entropy(found, classes),
        )


def forward_alone() -> tuple[nn.Module, torch.Tensor]:
    """No loss: an inference."""
    return Convolutions().eval(), torch.zeros(4, 3, 16, 16)


class _Peeking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, found: torch.Tensor) -> Any:
        return self.layer(found) if found.sum().item() > 0 else found


def peeking() -> Step:
    """What it does depends on values."""
    return _Peeking(), (torch.zeros(2, 4),), lambda found: found.sum()


def broken() -> Step:
    """A function with a mistake."""
    raise RuntimeError("no such file: weights.pt")


def nothing() -> None:
    """Forgets to return."""


def no_loss_function() -> Any:
    """A loss that is no function."""
    return Convolutions(), (torch.zeros(4, 3, 16, 16),), 3


class Skips(nn.Module):
    """Down and up again, with what came before joined on; GroupNorm, pooling, interpolation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.middle = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.last = nn.Conv2d(3 * width, 10, 3, padding=1)

    def forward(self, images: torch.Tensor) -> Any:
        fine = functional.silu(self.norm(self.first(images)))
        coarse = functional.silu(self.middle(functional.max_pool2d(fine, 2)))
        coarse = functional.interpolate(coarse, scale_factor=2.0)
        return self.last(torch.cat([fine, coarse], 1)).mean((2, 3))


class Twice(nn.Module):
    """One branch for both halves of a batch, compared; dropout and a buffer that it counts in."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, found: torch.Tensor) -> Any:
        self.calls += 1
        one, other = found.chunk(2)
        return self.head(torch.cat([self.branch(one), self.branch(other) * self.branch(one)]))


class Recurrent(nn.Module):
    """The same weights in each of eight steps, and a softmax whose result its backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, found: torch.Tensor) -> Any:
        state = torch.zeros(found.shape[0], 32)
        for step in found.unbind(1):
            state = torch.sigmoid(self.enter(step) + self.again(state).softmax(-1))
        return self.head(state)
