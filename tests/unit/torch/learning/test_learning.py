from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tierline_torch.arenas.selection import Run
from tierline_torch.calls import Gate, _call, invoking
from tierline_torch.learning.module_recorder import ModuleRecorder
from tierline_torch.tensors.operators import cover
from tierline_torch.tensors.weights import collect


class Recorded(Gate):
    def __init__(self, recorder: ModuleRecorder) -> None:
        self.enter, self.leave = recorder.enter, recorder.leave  # type: ignore[method-assign]


def record(model: nn.Module, *args: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Weights by name, with the names of the modules that read them ("" is outside)."""
    cover()
    recorder = ModuleRecorder()
    monkeypatch.setattr(nn.Module, "__call__", _call)
    names = {id(module): name or "root" for name, module in model.named_modules()}
    weights = collect(model.named_modules(), "cpu")
    with torch.inference_mode():
        recorder.begin(weights, [])
        _within(recorder, model, args)
        recorder.end()
    run: Run = recorder.run(weights)
    seen: dict[str, list[str]] = {}
    for call, weight in run.reads:
        reader = names[run.calls[call].module] if call >= 0 else ""
        seen.setdefault(weights[weight].name, []).append(reader)
    return seen


def _within(recorder: ModuleRecorder, model: nn.Module, args: tuple[Any, ...]) -> None:
    with invoking(Recorded(recorder)):
        model(*args)


def test_reads_belong_to_the_innermost_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()).eval()
    seen = record(model, torch.ones(1, 1, 4, 4), monkeypatch=monkeypatch)
    assert seen == {
        "0.weight": ["0"],
        "0.bias": ["0"],
        "1.weight": ["1"],
        "1.bias": ["1"],
    }


def test_attention_reads_its_childs_weights_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.MultiheadAttention(8, 2).eval()
    x = torch.ones(3, 1, 8)
    seen = record(model, x, x, x, monkeypatch=monkeypatch)
    assert seen["out_proj.weight"] == ["root"]
    assert seen["in_proj_weight"] == ["root"]


def test_reads_through_views_lists_and_composites_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(4))
            self.b = nn.Parameter(torch.ones(4))
            self.c = nn.Parameter(torch.ones(2, 2))
            self.unread = nn.Parameter(torch.ones(4))
            self.parts = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            _ = self.unread.shape
            y = torch.cat([x, self.a[1:], self.b]).sum() + torch.einsum("ij->", self.c.t())
            return self.parts[0](x) + y

    seen = record(Odd().eval(), torch.ones(4), monkeypatch=monkeypatch)
    assert seen == {
        "a": ["root"],
        "b": ["root"],
        "c": ["root"],
        "parts.0.weight": ["parts.0"],
        "parts.0.bias": ["parts.0"],
    }


def test_an_exception_leaves_the_stack_right(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = nn.Linear(4, 4)
            self.works = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                self.fails(x)
            except RuntimeError:
                return self.works(x)
            raise AssertionError

    seen = record(Tries().eval(), torch.ones(3), monkeypatch=monkeypatch)
    assert seen["works.weight"] == ["works"]
