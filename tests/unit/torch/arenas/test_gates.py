from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from tierline_torch.arenas import gates
from tierline_torch.arenas.gates import ModuleStopwatch, StreamGate


class Steps(nn.Module):
    def __init__(self, log: list[str], name: str, *, fails: bool = False) -> None:
        super().__init__()
        self.log, self.name, self.fails = log, name, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(self.name)
        if self.fails:
            raise ValueError(self.name)
        return x


def gate(log: list[str], modules: list[nn.Module]) -> StreamGate:
    return StreamGate(
        {id(module): layer for layer, module in enumerate(modules)},
        lambda layer: log.append(f"begin {layer}"),
        lambda layer: log.append(f"end {layer}"),
        lambda layer: log.append(f"out of order {layer}"),
    )


def call(invoke: Any, *modules: nn.Module) -> None:
    for module in modules:
        invoke(module, (torch.ones(1),), {})


def test_layers_are_begun_and_ended_and_others_pass() -> None:
    log: list[str] = []
    a, b, other = Steps(log, "a"), Steps(log, "b"), Steps(log, "other")
    call(gate(log, [a, b]), a, other, b)
    assert log == ["begin 0", "a", "end 0", "other", "begin 1", "b", "end 1"]


def test_a_failing_layer_is_ended() -> None:
    log: list[str] = []
    module = Steps(log, "a", fails=True)
    with pytest.raises(ValueError, match="a"):
        call(gate(log, [module]), module)
    assert log == ["begin 0", "a", "end 0"]


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ([0, 1, 2], []),
        ([0, 2], []),
        ([1, 0, 2, 1], ["out of order 0"]),
        ([0, 0], ["out of order 0"]),
    ],
)
def test_another_order_is_told_once_a_job(order: list[int], told: list[str]) -> None:
    log: list[str] = []
    modules = [Steps(log, name) for name in "abc"]
    call(gate(log, list(modules)), *(modules[index] for index in order))
    assert [line for line in log if line.startswith("out")] == told


def test_times_run_from_gate_to_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(step=1_000_000_000)
    monkeypatch.setattr(gates, "perf_counter_ns", lambda: next(ticks))
    modules = [Steps([], name) for name in "abc"]
    watch = ModuleStopwatch({id(module): layer for layer, module in enumerate(modules)})
    watch.start()
    call(watch, *modules, modules[0])
    watch.stop()
    before, layers = watch.layer_times_s()
    assert before == 1.0
    assert layers == [2.0, 1.0, 1.0]
    assert watch.total_s == before + sum(layers)


def test_a_job_without_gates_is_timed_as_a_whole() -> None:
    watch = ModuleStopwatch({})
    watch.start()
    watch.stop()
    assert watch.layer_times_s() == (watch.total_s, [])
