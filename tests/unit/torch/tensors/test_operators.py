"""Watching operators changes nothing that a program computes, calls or counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tierline_torch.tensors.operators import OperatorWatch, unseen, written_by


class Seen(OperatorWatch):
    def __init__(self) -> None:
        self.names: list[str] = []

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep its name."""
        del args, kwargs
        self.names.append(str(operator))


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Keep its name."""
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Keep its name."""
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Plain(torch.Tensor):
    pass


X = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))


def decoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerDecoderLayer(8, 2, batch_first=True).eval()


def attention() -> object:
    with torch.no_grad():
        return decoder()(X, X)


def jagged() -> object:
    parts = [X[0, :2], X[1]]
    return torch.nested.nested_tensor(parts, layout=torch.jagged).mul(2).add(1).values()


def gradients() -> object:
    given = X.clone().requires_grad_()
    (given * 2 + given / 3).matmul(given.mT).sum().backward()
    return given.grad


def choice() -> object:
    return torch.cond(X.sum() > 0, lambda x: x + 1, lambda x: x - 1, (X,))


def operators() -> object:
    with Operators() as mode:
        x = X @ X.mT + 2
    return x, mode.names


def functions() -> object:
    with Functions() as mode:
        x = torch.relu(X) * 2
    return x, mode.names


def profiled() -> object:
    with torch.no_grad(), profile() as seen:
        x = nn.functional.linear(X * 2, X[0]) - 1
    names = Counter(one.name for one in seen.function_events if one.name.startswith("aten::"))
    return x, sorted(names.items())


PROGRAMS: dict[str, Callable[[], object]] = {
    "attention": attention,
    "zeros": lambda: torch._efficientzerotensor((3,)) + 1,
    "conjugate": lambda: torch.complex(X, X).conj() * 2,
    "sparse": lambda: X[0].to_sparse() * 2,
    "quantised": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8).dequantize() * 2,
    "jagged": jagged,
    "subclass": lambda: (X * 2).as_subclass(Plain) + 1,
    "parameter": lambda: nn.Parameter(X * 2).detach() + 1,
    "gradients": gradients,
    "vmap": lambda: torch.vmap(lambda x: x.sin() * 2 + 1)(X),
    "grad": lambda: torch.func.grad(lambda x: (x * 2).sin().sum())(X),
    "jacobian": lambda: torch.func.jacrev(lambda x: x * 3 / 2)(X[0, 0]),
    "scripted": lambda: torch.jit.script(decoder())(X, X),
    "traced": lambda: torch.jit.trace(nn.Linear(8, 8).requires_grad_(False), X)(X * 0),
    "cond": choice,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(lambda: X @ X.mT + 2)().float(),
    "operators": operators,
    "functions": functions,
    "profiled": profiled,
    "raises": lambda: torch.cat([X, X[0]]) + 1,
}


def outcome(program: Callable[[], object]) -> str:
    """What a program gives or raises, bit by bit."""
    torch.manual_seed(0)
    torch.set_printoptions(precision=17, threshold=10**6)
    try:
        return repr(program())
    except Exception as error:
        return repr(error)
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_watched_program_gives_and_counts_the_same(name: str) -> None:
    outcome(PROGRAMS[name])  # what only a first run does: warnings, imports
    plain = outcome(PROGRAMS[name])
    with Seen() as seen:
        watched = outcome(PROGRAMS[name])
    assert watched == plain
    assert seen.names
    before = len(seen.names)
    assert outcome(PROGRAMS[name]) == plain
    assert len(seen.names) == before, "it sees no more"


def test_compiled_code_is_not_compiled_again() -> None:
    compiled = 0

    def backend(graph: Any, _: object) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    for watch in (Seen(), Seen(), nullcontext(), Seen(), nullcontext()):
        with watch:
            given = function(X) * 2
        assert torch.equal(given, (X.sin() + 1) * 2)
        if isinstance(watch, Seen):
            assert watch.names == ["aten.mul.Tensor"], "after compiled code it sees again"
    assert compiled == 1


def test_what_is_tierlines_own_is_seen_by_nobody() -> None:
    with Seen() as seen, Operators() as modes, Functions() as functions, profile() as profiled:
        with unseen():
            _ = X.sin().dtype
        X.cos()
    assert seen.names == modes.names == ["aten.cos.default"]
    assert functions.names == ["cos"]
    assert not any("sin" in one.name for one in profiled.function_events)


def test_a_kernels_parts_are_not_shown_and_a_composites_are() -> None:
    with torch.no_grad(), Seen() as seen:
        nn.functional.linear(X[0], X[0])
    assert seen.names == ["aten.select.int", "aten.select.int", "aten.t.default", "aten.mm.default"]


class Written(OperatorWatch):
    def __init__(self) -> None:
        self.places: set[int] = set()

    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep where it writes."""
        self.places.update(one.data_ptr() for one in written_by(operator, args, kwargs))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.BatchNorm3d(4, momentum=None),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Sequential(nn.LSTM(4, 4, dropout=0.5, num_layers=2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
    ],
    ids=repr,
)
def test_what_a_model_writes_of_its_own_is_declared(model: nn.Module, training: bool) -> None:
    model.train(training)
    shape = {"1d": 3, "2d": 4, "3d": 5}.get(type(model).__name__[-2:], 2)
    given = torch.ones(*(2, 4, 2, 2, 2)[:shape]) if shape > 2 else torch.ones(2, 4)
    tensors = dict(model.state_dict())
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    watch = Written()
    with torch.no_grad(), watch:
        model(given)
    changed = {n for n, tensor in tensors.items() if not torch.equal(tensor, before[n])}
    declared = {n for n, tensor in tensors.items() if tensor.data_ptr() in watch.places}
    assert changed == declared
    assert bool(changed) == (training and bool(list(model.buffers())))
