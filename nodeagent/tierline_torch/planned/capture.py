"""The graph of a training step, or of a forward, of a model as it is; nothing runs.

Dynamo and AOTAutograd trace the model with tensors that have no memory. A model on the meta device
is traced as one on the CPU: meta tensors have no gradients of all operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from tierline_torch.planned.lowering import Lowered, NotCapturedError, Times, lowered

Loss = Callable[[Any], torch.Tensor]


class _Captured(BaseException):
    """Tracing is over; carries the graph through the compiler, which has nothing more to do."""

    def __init__(self, graph: Lowered) -> None:
        super().__init__()
        self.graph = graph


def capture(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    loss: Loss | None,
    times: Times,
    name: str,
) -> Lowered:
    """Trace `loss(model(*inputs))` and its backward; without a loss the forward alone.

    Raises:
        NotCapturedError: the model cannot be captured as one graph; says PyTorch's reason.
    """
    compiler = _Compiler(times, name)

    def step(*given: Any) -> Any:
        output = model(*given)
        return output if loss is None else loss(output)

    torch._dynamo.reset()
    traced = torch.compile(step, backend=compiler, fullgraph=True, dynamic=False)
    try:
        with torch.set_grad_enabled(loss is not None):
            traced(*inputs)
    except _Captured as captured:
        return captured.graph
    except NotCapturedError:
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise NotCapturedError(f"PyTorch cannot capture it: {reason.strip()}") from error
    finally:
        torch._dynamo.reset()
    raise NotCapturedError("nothing in it needs a gradient" if loss else "it computes nothing")


class _Compiler:
    """A backend of torch.compile that only looks."""

    def __init__(self, times: Times, name: str) -> None:
        self.times, self.name = times, name

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        mode = detect_fake_mode(inputs) or FakeTensorMode()
        for node in module.graph.nodes:
            if node.kwargs.get("device") == torch.device("meta"):
                node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
        module.recompile()

        def real(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
                return tensor
            with mode:
                made = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
            return made.requires_grad_(tensor.requires_grad)

        backend = aot_autograd(
            fw_compiler=self.forward, inference_compiler=self.forward, partition_fn=self.joint
        )
        return backend(module, pytree.tree_map(real, inputs))

    def joint(
        self,
        module: fx.GraphModule,
        _inputs: Sequence[Any],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_more: Any,
    ) -> Any:
        """Called with forward and backward in one graph."""
        static = static_lifetime_input_indices or ()
        raise _Captured(lowered(module, num_fwd_outputs, static, self.times, self.name))

    def forward(self, module: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        """Called with the forward alone."""
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        count = len(pytree.tree_leaves(output.args))
        raise _Captured(lowered(module, count, (), self.times, self.name))
