"""Captured models where there is no GPU: they run as they are. With one: tests/gpu."""

import copy
import pickle

import torch
from torch import nn

import tierline


def test_a_model_on_the_cpu_runs_as_it_is() -> None:
    model = nn.Linear(3, 2).eval()
    wrapped = tierline.captured(model)
    given = torch.randn(4, 3)
    with torch.inference_mode():
        assert torch.equal(wrapped(given), model(given))
        assert torch.equal(wrapped(input=given), model(given))
    assert [name for name, _ in wrapped.named_parameters()] == ["module.weight", "module.bias"]


def test_a_copy_has_no_graphs_and_the_same_weights() -> None:
    wrapped = tierline.captured(nn.Linear(3, 2).eval())
    copied = pickle.loads(pickle.dumps(copy.deepcopy(wrapped)))  # noqa: S301 - made here
    given = torch.randn(4, 3)
    with torch.inference_mode():
        assert torch.equal(wrapped(given), copied(given))


def test_gradients_flow_through_it() -> None:
    wrapped = tierline.captured(nn.Linear(3, 2))
    wrapped(torch.randn(4, 3)).sum().backward()
    assert all(one.grad is not None for one in wrapped.parameters())
