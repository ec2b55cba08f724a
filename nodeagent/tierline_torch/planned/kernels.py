"""An operator as something that can be called again: its kernel, and where its arguments are.

Arguments are found by the plan's instances, not by where a tensor was last: `Found` says for one
step which instance of each value it reads. Views are called again from what they look at, so that
sizes and strides are those that the kernels really gave.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tierline_torch.planned.lowering import Lowered, NotCapturedError, tensors


@dataclass(frozen=True, slots=True)
class Found:
    """The sources of one step: inputs by their name, results by instance and number."""

    inputs: Mapping[str, Any]
    results: Mapping[tuple[int, int], torch.Tensor]
    instances: Mapping[int, int]
    """The instance of each value."""


Reference = Callable[[Found], Any]
"""Gives an argument."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The call of an operator, and the value of each tensor that it gives."""

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    values: tuple[int, ...]

    def call(self, found: Found) -> list[torch.Tensor]:
        """Run it; its tensors, in the order of `values`."""
        return tensors(self.target(*_given(self.arguments, found), **_given(self.named, found)))


def _given(arguments: Any, found: Found) -> Any:
    return pytree.tree_map(lambda one: one.get(found) if isinstance(one, _Held) else one, arguments)


@dataclass(frozen=True, slots=True)
class _Held:
    """A reference among arguments that are constants."""

    get: Reference


class References:
    """How nodes of a traced graph are found; made before anything changes that graph."""

    def __init__(self, lowered: Lowered, module: fx.GraphModule) -> None:
        self.lowered, self.module = lowered, module
        self.operators = {node: index for index, node in enumerate(lowered.nodes)}
        self.known: dict[fx.Node, Reference] = {}
        self.leaves: dict[fx.Node, frozenset[fx.Node]] = {}

    def kernel(self, node: fx.Node) -> Kernel:
        """An operator's kernel."""
        found = tensors(node.meta["val"])
        return Kernel(
            node.target,  # type: ignore[arg-type]  # an operator of PyTorch's
            self.arguments(node.args),
            self.arguments(node.kwargs),
            tuple(self.lowered.value_of(one) for one in found),
        )

    def arguments(self, given: Any) -> Any:
        """Arguments in which nodes are references."""

        def held(one: Any) -> Any:
            return _Held(self.of(one)) if isinstance(one, fx.Node) else one

        return fx.node.map_aggregate(given, held)

    def of(self, node: fx.Node) -> Reference:
        """How what a node gives is found."""
        if node not in self.known:
            self.known[node] = self._reference(node)
        return self.known[node]

    def made(self, node: fx.Node) -> tuple[int, int] | None:
        """The value, and the number among its kernel's tensors, of a node that gives a result."""
        kernel, number = node, 0
        if node.target is operator.getitem and node.args[0] in self.operators:
            kernel = node.args[0]  # type: ignore[assignment]
            before = kernel.meta["val"][: node.args[1]]
            number = len(tensors(before))
        elif node not in self.operators:
            return None
        found = tensors(kernel.meta["val"])
        if number >= len(found) or (node is kernel and len(found) > 1):
            return None
        return self.lowered.value_of(found[number]), number

    def sources(self, node: fx.Node) -> frozenset[fx.Node]:
        """The inputs and results that a node's value is found from."""
        if node not in self.leaves:
            if node.op in {"placeholder", "get_attr"} or self.made(node) is not None:
                self.leaves[node] = frozenset({node})
            else:
                self.leaves[node] = frozenset().union(*map(self.sources, node.all_input_nodes))
        return self.leaves[node]

    def _reference(self, node: fx.Node) -> Reference:
        if node.op == "placeholder":
            name = node.name
            return lambda found: found.inputs[name]
        if node.op == "get_attr":
            constant = getattr(self.module, str(node.target))
            return lambda _: constant
        made = self.made(node)
        if made is not None:
            value, number = made
            return lambda found: found.results[found.instances[value], number]
        if node.op != "call_function" or node in self.operators:
            raise NotCapturedError(f"{node} is no view")
        target: Any = node.target
        arguments, named = self.arguments(node.args), self.arguments(node.kwargs)
        return lambda found: target(*_given(arguments, found), **_given(named, found))
