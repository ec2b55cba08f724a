"""Compiled code does not hold the object that gets the module calls of a job."""

import inspect
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


class Own(nn.Module):
    """Not each PyTorch compiles a module of its own that is alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(given)
        return result


def test_a_module_of_a_job_is_called_as_without_it() -> None:
    """With its hooks, and compiled if it was."""
    calls.install()
    compiler = CompileCounter()
    hooked: list[nn.Module] = []
    compiled, plain = Own().eval(), Own().eval()
    compiled.compile(backend=compiler)
    plain.register_forward_hook(lambda module, *_: hooked.append(module))
    with torch.inference_mode(), calls.invoking(calls.plain):
        given = torch.randn(2, 4)
        assert torch.equal(compiled(given), compiled.forward(given))
        assert torch.equal(plain(given), plain.forward(given))
    assert compiler.frame_count == 1
    assert hooked == [plain]


def test_a_program_finds_the_names_and_the_signature_of_pytorch() -> None:
    calls.install()
    found = nn.Module.__call__
    assert found is not calls.original
    assert inspect.signature(found) == inspect.signature(calls.original)
    assert str(inspect.signature(nn.ReLU().__call__)) == "(*args, **kwargs)"
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    assert all(getattr(found, name) == getattr(calls.original, name) for name in names)
