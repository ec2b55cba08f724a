"""Operators on a clean stack. What it is for shows on a GPU: tests/gpu/checks/names.py."""

import torch
from torch import nn

from tierline_client.launches import Launches
from tierline_torch.tensors.clean_launches import _Cleared, clean_launches


def test_the_stack_is_cleared_before_every_operator_and_nothing_else_changes() -> None:
    launches = Launches()
    cleared = 0

    def clear() -> None:
        nonlocal cleared
        cleared += 1
        launches.clear_stack()

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    given = torch.randn(4, 8)
    with torch.inference_mode():
        expected = model(given)
        with _Cleared(clear):
            assert torch.equal(model(given), expected)
        assert cleared >= 3
        before = cleared
        model(given)
    assert cleared == before


def test_without_the_library_before_the_driver_there_is_nothing_to_clear() -> None:
    assert not Launches().active
    with clean_launches():
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
