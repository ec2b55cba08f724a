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


def test_a_module_of_a_job_is_called_as_without_it() -> None:
    """With its hooks, and compiled if it was."""
    calls.install()
    compiler = CompileCounter()
    hooked: list[nn.Module] = []
    compiled, plain = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()
    compiled.compile(backend=compiler)
    plain.register_forward_hook(lambda module, *_: hooked.append(module))
    with torch.inference_mode(), calls.invoking(calls.plain):
        given = torch.randn(2, 4)
        assert torch.equal(compiled(given), compiled.forward(given))
        assert torch.equal(plain(given), plain.forward(given))
    assert compiler.frame_count == 1
    assert hooked == [plain]
