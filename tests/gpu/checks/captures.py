"""Captured graphs take the path that the model takes uncaptured, where that can be captured.

Run by `make gpu-test`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tierline


class _Asking(nn.Module):
    """Takes another path when it is told that it is being captured."""

    def __init__(self, look: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.look = look
        self.told: list[bool] = []

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """As if by a mask when captured; without one if the values need none."""
        self.told.append(torch.cuda.is_current_stream_capturing())
        computed: torch.Tensor = self.linear(given)
        if self.told[-1] or not self.look(given):
            return torch.where(given >= 0, computed, computed)
        return computed


def _never_looks(_given: torch.Tensor) -> bool:
    return True


def _looks(given: torch.Tensor) -> bool:
    return bool((given >= 0).all())


def _waits_unseen(_given: torch.Tensor) -> bool:
    torch.cuda.synchronize()
    return True


@pytest.mark.parametrize(
    ("look", "told"),
    [
        pytest.param(_never_looks, [False] * 4, id="it looks at nothing"),
        pytest.param(_looks, [False] * 3 + [True], id="it looks at values"),
        pytest.param(_waits_unseen, [False] * 6, id="it waits for the GPU by itself"),
    ],
)
def test_the_path_of_a_captured_model(
    look: Callable[[torch.Tensor], bool], told: list[bool], capfd: pytest.CaptureFixture[str]
) -> None:
    model = _Asking(look).eval().cuda()
    captured = tierline.captured(model)
    stream = torch.cuda.current_stream()
    with torch.inference_mode():
        for seed in range(5):
            torch.manual_seed(seed)
            given = torch.rand(4, 8, device="cuda")
            assert torch.equal(captured(given), model.linear(given))
    assert model.told == told  # three calls as it is, then the capture; or that and all others
    assert ("without a graph" in capfd.readouterr().err) == (len(told) > 4)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    torch.rand(8, device="cuda")  # the generator is as it was


def test_transformers_leaves_out_a_mask_that_masks_nothing() -> None:
    from transformers import ViTConfig, ViTModel  # noqa: PLC0415  # takes seconds

    torch.manual_seed(0)
    config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32)
    model = ViTModel(config, add_pooling_layer=False).eval().half().cuda()
    pictures = torch.rand(2, 3, 32, 32, dtype=torch.float16, device="cuda")
    with torch.inference_mode():
        eager = model(pictures).last_hidden_state
        captured = tierline.captured(model)
        for _ in range(5):
            assert torch.equal(captured(pictures).last_hidden_state, eager)
