"""A training BatchNorm may run again, and must not count its batch twice.

AOTAutograd's form of it gives new running statistics, which the program's buffers are set to when
the forward is over. So in the backward the old ones are gone, and a second run must not read them:
it takes the form without statistics, whose results are the same bits. The backward's own kernel
uses the batch's statistics, not the running ones, and must not read those either.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_FORWARD = aten._native_batch_norm_legit_functional.default
AGAIN = aten._native_batch_norm_legit.no_stats
_BACKWARD = aten.native_batch_norm_backward.default
_SHARED = 3
"""Results that both forms have: the output, and the batch's mean and deviation."""


def is_training(node: fx.Node) -> bool:
    """Whether a node is a BatchNorm that moves running statistics."""
    return node.target is _FORWARD and node.args[5] is True


def read_no_running_statistics(joint: fx.GraphModule) -> None:
    """Have each backward of a training BatchNorm read the batch's statistics alone."""
    for node in joint.graph.nodes:
        if node.target is _BACKWARD and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def without_statistics(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a second run (`AGAIN`), by those of the first."""
    given, weight, bias, _mean, _variance, training, momentum, eps = arguments
    return (given, weight, bias, training, momentum, eps)


def split(joint: fx.GraphModule) -> dict[str, str]:
    """Give each training BatchNorm a twin without statistics, from which all but those are taken.

    Returns the twin of each by their names. What is extracted from such a graph for the backward
    has only the twin.
    """
    twins = {}
    for node in list(joint.graph.nodes):
        if not is_training(node):
            continue
        with joint.graph.inserting_after(node):
            twin = joint.graph.call_function(AGAIN, without_statistics(node.args))
        twin.meta = {**node.meta, "val": node.meta["val"][:_SHARED]}
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] < _SHARED:
                user.args = (twin, user.args[1])
        twins[node.name] = twin.name
    return twins


def joined(module: fx.GraphModule, twins: dict[str, str]) -> None:
    """Where a module has both a BatchNorm and its twin, run the former alone."""
    named = {node.name: node for node in module.graph.nodes}
    for name, twin_name in twins.items():
        if name not in named or twin_name not in named:
            continue
        node, twin = named[name], named[twin_name]
        for user in list(twin.users):
            user.args = (node, user.args[1])
        module.graph.erase_node(twin)
    module.graph.lint()
    module.recompile()
