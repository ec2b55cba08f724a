from __future__ import annotations

import threading

import torch
from torch import nn
from torch.autograd.profiler import profile

from tierline_torch.tensors.workspace import WorkspaceMeter, standing_bytes


def test_the_peak_is_exact() -> None:
    meter = WorkspaceMeter()
    meter.begin([])
    with torch.inference_mode():
        first = torch.zeros(1000, dtype=torch.uint8)
        second = torch.zeros(3000, dtype=torch.uint8)
        del first
        third = torch.zeros(500, dtype=torch.uint8)
        del second, third
        torch.zeros(3400, dtype=torch.uint8)
    meter.end()
    assert meter.peak_bytes == 4000


def test_where_a_profile_is_taken_already_the_peak_is_not_known() -> None:
    meter = WorkspaceMeter()
    with profile(use_device=None, profile_memory=True) as theirs:
        meter.begin([])
        torch.zeros(1000, dtype=torch.uint8)
        meter.end()
    assert meter.peak_bytes is None
    assert theirs.kineto_results is not None


def test_in_another_thread_the_peak_is_not_known() -> None:
    meter = WorkspaceMeter()

    def job() -> None:
        meter.begin([])
        torch.zeros(1000, dtype=torch.uint8)
        meter.end()

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    assert meter.peak_bytes is None


def test_buffers_and_inputs_stand() -> None:
    batch_norm = nn.BatchNorm1d(10)
    inputs = {"x": torch.zeros(10), "more": [torch.zeros(5)]}
    assert standing_bytes([batch_norm, batch_norm], inputs) == 10 * 4 * 2 + 8 + 60
