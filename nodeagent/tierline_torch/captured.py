"""Runs a static model as one captured CUDA graph per shape of its input.

A graph makes launch-bound jobs shorter and all jobs steady. It holds addresses: it is captured anew
when the weights have moved. The first call of a shape runs the model a few times before it captures
(libraries allocate and choose kernels then), and takes the path of these runs when it is captured
(`eager_path`); a model that cannot be captured runs as it is, and says so once.

The inputs are copied into the graph's own, the outputs out of it, so a caller keeps what it got.
Keyword arguments and arguments that are no tensors are part of the shape. A model whose control
flow depends on its input's values must not be captured: nothing can tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tierline_torch import arena
from tierline_torch.clean_launches import clean_launches
from tierline_torch.eager_path import eager_path, waits_for_gpu

_WARM_UPS = 3
_MOST_GRAPHS = 16
"""Shapes of one model that are kept captured; beyond, the model runs as it is."""


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: list[Any]
    structure: Any
    moves: int

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        for own, given in zip(self.inputs, tensors, strict=True):
            own.copy_(given)
        self.graph.replay()
        kept = [one.clone() if isinstance(one, torch.Tensor) else one for one in self.outputs]
        return pytree.tree_unflatten(kept, self.structure)


class _Graphs:
    """The graphs of one module. No container that a repeated job would put back as it was.

    A copy of the module, or one that was pickled, starts without any.
    """

    def __init__(self) -> None:
        self.by_shape: dict[object, _Captured] = {}
        self.refused = False

    def __reduce__(self) -> tuple[type[_Graphs], tuple[()]]:
        return _Graphs, ()


class Captured(torch.nn.Module):
    """A module that runs another one as captured graphs."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._graphs = _Graphs()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        leaves: Sequence[Any] = args
        structure = None
        if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
            # Not for a mere list of tensors: it takes longer than the launch of the graph.
            leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        if self._graphs.refused or torch.is_grad_enabled() or not _on_gpu(tensors):
            return self.module(*args, **kwargs)
        key = (
            structure,
            tuple(
                (one.shape, one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one
                for one in leaves
            ),
            torch.is_autocast_enabled("cuda"),
        )
        known = self._graphs.by_shape.get(key)
        if known is None or known.moves != arena.moves():
            if known is None and len(self._graphs.by_shape) >= _MOST_GRAPHS:
                return self.module(*args, **kwargs)
            known = self._capture(leaves, structure)
            if known is None:
                return self.module(*args, **kwargs)
            self._graphs.by_shape[key] = known
        return known.run(tensors)

    def _capture(self, leaves: Sequence[Any], structure: Any) -> _Captured | None:
        own = [one.clone() if isinstance(one, torch.Tensor) else one for one in leaves]
        args, kwargs = (own, {}) if structure is None else pytree.tree_unflatten(own, structure)

        def call() -> Any:
            return self.module(*args, **kwargs)

        try:
            graph, result = _captured(call)
        except RuntimeError as error:
            self._graphs.refused = True
            name = type(self.module).__name__
            sys.stderr.write(f"tierline: {name} runs without a graph: {_first_line(error)}\n")
            return None
        outputs, shape = pytree.tree_flatten(result)
        inputs = [one for one in own if isinstance(one, torch.Tensor)]
        return _Captured(graph, inputs, outputs, shape, arena.moves())


def _captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS - 1):
            call()
        looks = waits_for_gpu(call)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    if not looks:
        try:
            with eager_path():
                return _capture(call, stream)
        except RuntimeError:
            torch.cuda.synchronize()  # a wait that PyTorch did not see; it is known now
    return _capture(call, stream)


def _capture(
    call: Callable[[], Any], stream: torch.cuda.Stream
) -> tuple[torch.cuda.CUDAGraph, Any]:
    before = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream), clean_launches():
            result = call()
    finally:
        torch.cuda.set_stream(before)  # one that fails may leave its own
    return graph, result


def _on_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    return bool(tensors) and all(one.is_cuda for one in tensors)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
