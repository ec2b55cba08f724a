from __future__ import annotations

import torch
from torch import nn

from tierline_torch.workspace import WorkspaceMeter, standing_bytes


def test_the_peak_is_exact() -> None:
    with torch.inference_mode(), WorkspaceMeter() as meter:
        first = torch.zeros(1000, dtype=torch.uint8)
        second = torch.zeros(3000, dtype=torch.uint8)
        del first
        third = torch.zeros(500, dtype=torch.uint8)
        del second, third
        torch.zeros(3400, dtype=torch.uint8)
    assert meter.peak_bytes == 4000


def test_a_second_meter_measures_nothing() -> None:
    with WorkspaceMeter() as outer, WorkspaceMeter() as inner:
        torch.zeros(1000, dtype=torch.uint8)
    assert inner.peak_bytes == 0
    assert outer.peak_bytes == 1000


def test_buffers_and_inputs_stand() -> None:
    batch_norm = nn.BatchNorm1d(10)
    inputs = {"x": torch.zeros(10), "more": [torch.zeros(5)]}
    assert standing_bytes([batch_norm, batch_norm], inputs) == 10 * 4 * 2 + 8 + 60
