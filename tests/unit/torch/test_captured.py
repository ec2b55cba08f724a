"""Captured models where there is no GPU: they run as they are. With one: tests/gpu."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import tierline
from tierline_torch import captured


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


class Repeated:
    """In a graph's place: computes the result anew where it was."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result = call()

    def replay(self) -> None:
        for own, fresh in zip(
            pytree.tree_leaves(self.result), pytree.tree_leaves(self.call()), strict=True
        ):
            own.copy_(fresh)


class Sums(nn.Module):
    def forward(self, one: Any, other: Any = None, *, factor: float = 1.0) -> Any:
        given = pytree.tree_leaves((one, other))
        total = sum(leaf for leaf in given if isinstance(leaf, torch.Tensor))
        return {"sum": total * factor, "twice": (total * 2,)}


def test_each_shape_of_arguments_has_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Repeated] = []

    def make(call: Callable[[], Any]) -> tuple[Repeated, Any]:
        graphs.append(Repeated(call))
        return graphs[-1], graphs[-1].result

    monkeypatch.setattr(captured, "_captured", make)
    monkeypatch.setattr(captured, "_on_gpu", bool)
    model = Sums().eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for _ in range(3):
            one, other = torch.randn(2, 3), torch.randn(2, 3)
            for args, kwargs in (
                ((one,), {}),
                ((one, other), {}),
                ((one[:1],), {}),
                (([one, other],), {}),
                ((one, 3), {}),
                ((one,), {"other": other}),
                ((one,), {"factor": 2.0}),
            ):
                found = pytree.tree_flatten(wrapped(*args, **kwargs))
                wanted = pytree.tree_flatten(model(*args, **kwargs))
                assert found[1] == wanted[1]
                assert all(torch.equal(*two) for two in zip(found[0], wanted[0], strict=True))
    assert len(graphs) == 7
