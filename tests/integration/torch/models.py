"""Small real models, each with inputs, that a program runs plain, observed and managed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)


@dataclass(frozen=True)
class Case:
    """A model with two inputs (keyword arguments, or one positional tensor under "")."""

    model: nn.Module
    inputs: list[dict[str, Any]]

    def run(self, index: int) -> Any:
        kwargs = dict(self.inputs[index % len(self.inputs)])
        positional = [kwargs.pop("")] if "" in kwargs else []
        return self.model(*positional, **kwargs)


class Attention(nn.Module):
    """Multi-head attention with an output projection that its parent reads."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.after = nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.after(mixed)


class Branches(nn.Module):
    """Which branch runs depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(64, 512)
        self.small = nn.Linear(512, 128)
        self.large = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128))
        self.after = nn.Linear(128, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        x = self.large(x) if bool(x.sum() > 0) else self.small(x)
        return self.after(x)


class Tied(nn.Module):
    """An embedding that is also the output projection, and two modules with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.body = nn.Linear(64, 64)
        self.twin = nn.Linear(64, 64)
        self.twin.weight = self.body.weight
        self.middle = nn.Linear(64, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.twin(self.body(self.embed(ids)).relu())
        return self.middle(x) @ self.embed.weight.T


class Counting(nn.Module):
    """Buffers and attributes that a forward changes, and which its output depends on."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 512)
        self.steps = 0
        self.register_buffer("total", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.total += x.sum(0)
        return self.linear(x + self.total / self.steps)


class Orders(nn.Module):
    """Calls its parts in the order that it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(128, 128) for _ in range(5))
        self.order = [0, 1, 2, 3, 4]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.order:
            x = self.parts[index](x).tanh()
            if index < 0:
                raise ValueError("a forward that fails")
        return x


class Addressed(nn.Module):
    """Its output depends on where its weights lie, so a streamed run cannot give the same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.linear.weight.data_ptr() % 1_000_003


class Unsteady(nn.Module):
    """Gives another output each time, with nothing that could be put back."""

    runs = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Unsteady.runs += 1
        return self.linear(x) + Unsteady.runs


class Threaded(nn.Module):
    """Runs one of its parts in a thread of its own, and waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Linear(64, 256)
        self.there = nn.Linear(256, 256)
        self.aside = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.here(x)
        if not self.aside:
            return self._there(x)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._there, x).result()

    def _there(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.there(x)


def _pictures(size: int) -> list[dict[str, Any]]:
    return [{"pixel_values": torch.randn(1, 3, size, size)} for _ in range(2)]


def _rows(*shape: int) -> list[dict[str, Any]]:
    return [{"": torch.randn(*shape)}, {"": torch.randn(*shape)}]


def _bert() -> Case:
    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
    )
    inputs = [{"input_ids": torch.randint(0, 1000, (2, 16))} for _ in range(2)]
    return Case(BertForMaskedLM(config), inputs)


def _vit() -> Case:
    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=32,
        patch_size=8,
    )
    return Case(ViTModel(config), _pictures(32))


def _resnet() -> Case:
    config = ResNetConfig(embedding_size=32, hidden_sizes=[64, 128, 256], depths=[1, 2, 1])
    model = ResNetModel(config)
    return Case(nn.Module.to(model, memory_format=torch.channels_last), _pictures(32))


def _half() -> Case:
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 300), nn.LayerNorm(300))
    return Case(model.to(torch.bfloat16), [{"": torch.randn(3, 64).bfloat16()} for _ in range(2)])


def _from_file() -> Case:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.safetensors")
        save_model(model, path)
        fresh = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
        load_model(fresh, path)
    return Case(fresh, _rows(3, 64))


def _one_storage() -> Case:
    """Parameters that are views of one storage, packed without padding, as in a mapped file."""
    model = nn.Sequential(nn.Linear(63, 513), nn.ReLU(), nn.Linear(513, 65))
    flat = torch.cat([parameter.data.reshape(-1) for parameter in model.parameters()])
    place = 0
    for parameter in model.parameters():
        parameter.data = flat[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    return Case(model, _rows(3, 63))


CASES: dict[str, Callable[[], Case]] = {
    "bert": _bert,
    "vit": _vit,
    "resnet": _resnet,
    "half": _half,
    "from_file": _from_file,
    "one_storage": _one_storage,
    "attention": lambda: Case(Attention(), _rows(2, 5, 64)),
    "branches": lambda: Case(Branches(), [{"": torch.ones(2, 64)}, {"": -torch.ones(2, 64)}]),
    "tied": lambda: Case(Tied(), [{"": torch.arange(8)[None]}, {"": torch.arange(9)[None] + 50}]),
    "counting": lambda: Case(Counting(), _rows(3, 64)),
    "orders": lambda: Case(Orders(), _rows(2, 128)),
    "addressed": lambda: Case(Addressed(), _rows(2, 64)),
    "unsteady": lambda: Case(Unsteady(), _rows(2, 64)),
    "threaded": lambda: Case(Threaded(), _rows(2, 64)),
    "lstm": lambda: Case(_Lstm(), _rows(2, 5, 64)),
    "encoder": lambda: Case(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 2, enable_nested_tensor=False
        ),
        _rows(2, 5, 64),
    ),
}


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def make_all() -> dict[str, Case]:
    """Every case, with the same weights and inputs in every process."""
    made = {}
    for seed, (name, make) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        made[name] = make()
        made[name].model.eval()
    return made
