"""How long an operator's kernel runs, from its shapes: a model, where nothing was measured.

The larger of its arithmetic at the device's rate and its bytes at the bandwidth, and what a launch
costs. Arithmetic is what PyTorch counts (`torch.utils.flop_counter`); bytes are those of operands
and results, each storage at most once. Unfused, no workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from tierline_steps.plan import Links
from tierline_torch.planned.lowering import operands, tensors

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Device:
    """Rates that kernels reach: operations a second by precision, and bytes a second."""

    name: str
    half: float
    single: float
    memory: float
    launch_ns: int
    links: Links

    def time_ns(self, node: fx.Node) -> int:
        """How long the kernel of one node runs."""
        found = tensors(node.meta.get("val"))
        size = sum(map(_touched, found)) + sum(map(_touched, operands(node)))
        narrow = any(one.dtype in {torch.float16, torch.bfloat16} for one in found)
        arithmetic = _operations(node) / (self.half if narrow else self.single)
        return round(max(arithmetic, size / self.memory) * _NS) + self.launch_ns


def _links(alone: float, together: float, latency_ns: int) -> Links:
    return Links(alone, alone, together, latency_ns)


DEVICES = {
    device.name: device
    for device in (
        Device("H200", 790e12, 54e12, 4.3e12, 2_000, _links(55e9, 91e9, 10_000)),
        Device("H100", 790e12, 54e12, 3.0e12, 2_000, _links(55e9, 91e9, 10_000)),
        Device("A100", 280e12, 19e12, 1.4e12, 3_000, _links(24e9, 42e9, 15_000)),
        Device("CPU", 0.1e12, 0.3e12, 0.03e12, 5_000, _links(10e9, 15e9, 5_000)),
        Device("V100", 100e12, 14e12, 0.8e12, 5_000, _links(12e9, 22e9, 20_000)),
    )
}


def _touched(tensor: torch.Tensor) -> int:
    """An expanded tensor has no more bytes than its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _operations(node: fx.Node) -> float:
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0.0

    def value(found: Any) -> Any:
        return found.meta["val"] if isinstance(found, fx.Node) else found

    arguments, named = pytree.tree_map(value, (node.args, node.kwargs))
    return float(count(*arguments, **named, out_val=node.meta["val"]))
