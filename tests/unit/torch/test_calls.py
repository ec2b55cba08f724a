"""Compiled code does not hold who gets the module calls of a job."""

from typing import Any

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tierline_torch import calls


class OwnCall(nn.Linear):
    """As layers of Hugging Face's models do."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Job:
    def invoke(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return calls.original(module, *args, **kwargs)


def test_a_class_with_a_call_of_its_own_is_compiled_once() -> None:
    calls.install()
    compiler = CompileCounter()
    compiled = torch.compile(nn.Sequential(OwnCall(4, 4), nn.ReLU()).eval(), backend=compiler)
    given = torch.randn(2, 4)
    with torch.inference_mode():
        for invoke in (Job().invoke, calls.plain, Job().invoke):
            with calls.invoking(invoke):
                compiled(given)
    assert compiler.frame_count == 1
