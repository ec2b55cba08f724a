"""`torch.compile` with a bound on memory: `tierline.planned`, or `backend="tierline"`.

Each graph that Dynamo makes of the model is planned when it is compiled, verified, and run by the
executor. AOTAutograd is the frame: mutated inputs, saved values and versions are its work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import default_partition

from tierline_api.schema.quantities import QuantityError, parse_quantity, without_b
from tierline_steps.graph import Graph
from tierline_steps.plan import Infeasible, NotFound, Plan
from tierline_steps.planner import plan
from tierline_steps.verify import verify
from tierline_torch.errors import TierlineError
from tierline_torch.planned import norms
from tierline_torch.planned.execution import Arena
from tierline_torch.planned.lowering import Lowered, NotCapturedError, lowered, tensors
from tierline_torch.planned.modelled import DEVICES
from tierline_torch.planned.partition import divided, outputs_of, whole
from tierline_torch.telling import tell

_SECONDS = 2.0
"""Of search, for each graph, once."""


class Backend:
    """A backend of `torch.compile` for one model; its graphs share one arena.

    What cannot be planned, because PyTorch cannot capture it as one graph or because of what is in
    it, runs as it is: a sentence says so once, with the reason.
    """

    def __init__(self, budget_bytes: int, seconds: float = _SECONDS) -> None:
        self.budget_bytes, self.seconds = budget_bytes, seconds
        self.arena = Arena()
        self.plans: list[Plan] = []
        self.said: str | None = None

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile one graph; raises TierlineError if no plan fits, which Dynamo wraps."""
        why = getattr(module, "compile_subgraph_reason", None)
        if why is not None and why.graph_break:
            self._leave(why.reason)
        backend = aot_autograd(
            fw_compiler=_compiled,
            bw_compiler=_compiled,
            inference_compiler=self._forward,
            partition_fn=self._divided,
        )
        config.donated_buffer = False  # else AOTAutograd refuses `retain_graph`; asked at run time
        return backend(module, inputs)

    def _leave(self, reason: str) -> None:
        """From now on all runs as it is: how much other graphs take is not known."""
        if self.said is None:
            self.said = next(iter(reason.strip().splitlines()), "")
            tell(f"a model runs as it is, without a bound on its memory: {self.said}")

    def _divided(
        self,
        joint: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **more: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        static = static_lifetime_input_indices or ()
        if self.said is None:
            try:
                norms.read_no_running_statistics(joint)
                found = self._lowered(joint, num_fwd_outputs, static)
                plan = self._plan(found.graph)
                return divided(joint, found, plan, num_fwd_outputs, self.arena)
            except NotCapturedError as error:
                self._leave(str(error))
        return default_partition(
            joint,
            inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=list(static),
            **more,
        )

    def _forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.said is None:
            try:
                found = self._lowered(module, len(outputs_of(module)), ())
                return whole(module, found, self._plan(found.graph), self.arena)
            except NotCapturedError as error:
                self._leave(str(error))
        return _compiled(module, inputs)

    def _lowered(
        self, module: fx.GraphModule, num_fwd_outputs: int, static: Sequence[int]
    ) -> Lowered:
        times = DEVICES["H200" if _is_on_gpu(module) else "CPU"].time_ns
        return lowered(module, num_fwd_outputs, static, times, "step", allocates=True)

    def _plan(self, graph: Graph) -> Plan:
        """A verified plan. Raises TierlineError if there is none."""
        end = time.monotonic() + self.seconds
        found = plan(graph, self.budget_bytes, seed=0, go_on=lambda: time.monotonic() < end)
        if isinstance(found, Infeasible):
            raise TierlineError(
                f"no plan fits in {self.budget_bytes:,} bytes: {found.least_bytes:,} is the least, "
                f"for {found.reason}"
            )
        if isinstance(found, NotFound):
            raise TierlineError(
                f"no plan was found in {self.budget_bytes:,} bytes, and one may exist: "
                f"{found.least_bytes:,} was the least that was reached"
            )
        verify(graph, found)
        self.plans.append(found)
        return found


def _is_on_gpu(module: fx.GraphModule) -> bool:
    return any(one.is_cuda for node in module.graph.nodes for one in tensors(node.meta.get("val")))


def _compiled(module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
    half: Callable[..., Any] | None = module.meta.get("tierline")
    return make_boxed_func(module.forward) if half is None else half


def budget_of(memory: str | int) -> int:
    """Bytes that `4GiB`, `4Gi` or a number mean. Raises TierlineError that says what to write."""
    if isinstance(memory, int):
        return memory
    try:
        return parse_quantity(without_b(memory))
    except QuantityError as error:
        raise TierlineError(f"memory={memory!r}: {error}; write for instance 4GiB") from None


def planned(
    model: torch.nn.Module, memory: str | int, seconds: float = _SECONDS
) -> torch.nn.Module:
    """The model, whose forward and backward stay within `memory` (weights included): `"4GiB"`."""
    backend = Backend(budget_of(memory), seconds)
    compiled: Any = torch.compile(model, backend=backend, dynamic=False)
    return compiled  # type: ignore[no-any-return]  # a module, as it was given one


def tierline(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """`torch.compile(model, backend="tierline")`, with the bound in TIERLINE_MEMORY."""
    memory = os.environ.get("TIERLINE_MEMORY")
    if not memory:
        raise TierlineError(
            'torch.compile(backend="tierline") wants a bound on memory: set TIERLINE_MEMORY, for '
            "instance 4GiB, or use tierline.planned(model, memory=...)"
        )
    return Backend(budget_of(memory))(module, inputs)
