"""The graph of a real model's step: what is an operator, a value, live-in, and repeatable."""

from __future__ import annotations

import pytest
import torch
from tests.integration.torch.planned import nets

from tierline_steps.graph import Graph, Role
from tierline_torch.planned.capture import capture
from tierline_torch.planned.lowering import NotCapturedError
from tierline_torch.planned.modelled import DEVICES


def graph_of(step: nets.Step) -> Graph:
    return capture(*step, DEVICES["H200"].time_ns, "step").graph


def bytes_of(graph: Graph, *roles: Role) -> int:
    return sum(value.size_bytes for value in graph.values if value.role in roles)


def parameter_bytes(model: torch.nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def test_a_step_has_its_weights_and_one_gradient_of_each() -> None:
    step = nets.convolutions()
    graph = graph_of(step)
    buffers = sum(one.numel() * one.element_size() for one in step[0].buffers())
    assert bytes_of(graph, Role.WEIGHT) == parameter_bytes(step[0]) + buffers
    assert bytes_of(graph, Role.GRADIENT) == parameter_bytes(step[0])
    assert 0 < graph.backward < len(graph.operators)
    assert graph.operators[0].name == "stem.convolution"
    assert graph.operators[-1].name == "stem.convolution_backward (backward)"


def test_new_statistics_and_the_loss_are_kept_outside_of_the_arena() -> None:
    graph = graph_of(nets.convolutions())
    statistics = 4 * (2 * 16 * 4 + 8)  # mean and variance of 16 channels, and a count
    assert bytes_of(graph, Role.RESULT) == 0
    assert graph.values[-1].size_bytes == statistics + 4


def test_tied_weights_are_one_value() -> None:
    step = nets.language()
    graph = graph_of(step)
    assert bytes_of(graph, Role.WEIGHT) == parameter_bytes(step[0])
    assert bytes_of(graph, Role.GRADIENT) == parameter_bytes(step[0])


def test_views_are_no_operators() -> None:
    names = {one.name.split(".")[-1] for one in graph_of(nets.language()).operators}
    assert not names & {"view", "transpose", "permute", "select", "t", "expand", "detach"}


def test_what_draws_random_numbers_is_not_repeatable() -> None:
    graph = graph_of(nets.language(dropout=0.1))
    once = [one.name.split(".")[-1] for one in graph.operators if not one.repeatable]
    assert sorted(once) == ["native_dropout"] * 6 + ["nll_loss_forward"]  # which gives the loss


def test_a_model_on_the_meta_device_is_captured_as_one_with_memory() -> None:
    graph, other = graph_of(nets.on_meta()), graph_of(nets.convolutions())
    assert graph == other


def test_a_step_larger_than_the_machine_is_captured() -> None:
    assert graph_of(nets.large_on_meta()).peak_bytes() > 2**41


def test_a_forward_without_a_loss_has_no_backward() -> None:
    model, images = nets.forward_alone()
    graph = capture(model, (images,), None, DEVICES["H200"].time_ns, "forward").graph
    assert graph.backward == len(graph.operators)
    assert bytes_of(graph, Role.GRADIENT) == 0
    assert graph.values[-1].size_bytes == 4 * 10 * 4


def test_what_depends_on_values_is_not_captured_and_pytorch_says_why() -> None:
    with pytest.raises(NotCapturedError, match="PyTorch cannot capture it"):
        graph_of(nets.peeking())
