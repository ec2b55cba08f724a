from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tierline_torch.calls import plain
from tierline_torch.replay import Modes, Replay, State, UnrepeatableError, note_forward


class Restless(nn.Module):
    """Changes everything that it can."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.count = 0
        self.history: list[int] = []
        self.recent: deque[torch.Tensor] = deque(maxlen=2)
        self.table: dict[str, torch.Tensor] = {"kept": torch.zeros(4)}
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history.append(self.count)
        self.recent.append(x.clone())
        self.table["kept"] += 1
        self.table[f"new {self.count}"] = x
        self.seen += x
        if self.cache is None:
            self.cache = x * 2
        self.added = self.count
        x += torch.rand(4) + random.gauss() + np.random.rand()
        return self.linear(x) + self.seen + self.count + self.cache + self.table["kept"]


def repeatable(model: nn.Module, x: torch.Tensor) -> tuple[Replay, torch.Tensor]:
    forward = note_forward(model, (x,), {})
    replay = Replay([forward], State([model]))
    output: torch.Tensor = model(x)
    forward.output.append(output)
    replay.finish()
    return replay, output


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_repetition_gives_the_same_and_leaves_no_trace(mode: Any) -> None:
    model = Restless().eval()
    with mode():
        model(torch.ones(4))
        replay, output = repeatable(model, torch.ones(4))
        for _ in range(3):
            assert torch.equal(replay.run(plain)[0], output)
        assert model.count == 2
        assert model.history == [1, 2]
        assert len(model.recent) == 2
        assert sorted(model.table) == ["kept", "new 1", "new 2"]
        assert model.table["kept"].tolist() == [2.0] * 4


def test_generators_go_on_as_if_nothing_was_repeated() -> None:
    model = Restless().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        replay, _ = repeatable(model, torch.ones(4))
        expected = torch.get_rng_state(), random.getstate()
        replay.run(plain)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]


def test_a_failing_repetition_leaves_no_trace_either() -> None:
    model = Restless().eval()
    with torch.no_grad():
        replay, _ = repeatable(model, torch.ones(4))

        def fails(*call: Any) -> Any:
            plain(*call)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            replay.run(fails)
    assert model.count == 1


def test_modes_are_those_of_the_forward() -> None:
    seen: list[Modes] = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(Modes.current())
            return x

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        replay, _ = repeatable(Looks(), torch.ones(1))
    replay.run(plain)
    assert seen[0] == seen[1]
    assert seen[1].inference
    assert seen[1].autocast


def test_inputs_that_cannot_be_copied_are_told() -> None:
    with pytest.raises(UnrepeatableError, match="inputs of Linear cannot be copied: TypeError"):
        note_forward(nn.Linear(1, 1), (threading.Lock(),), {})
