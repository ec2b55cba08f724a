"""Programs of every kind run plain and observed: they must not be able to tell.

Each is a model that gets, gives, has or computes with something odd, or keeps state anywhere that a
program can keep it. Outputs, exceptions, side effects and the number of forwards are compared.
"""

from __future__ import annotations

import functools
import io
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tierline_torch import calls, dispatch, process
from tierline_torch.calls import invoking, plain
from tierline_torch.tensors.structures import digest

CALLS = 6


class Strict(torch.Tensor):
    """Refuses each question."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"{func} is not allowed")


class Wrapper(torch.Tensor):
    """Has no bytes of its own."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own has no defaults
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        bare = [one.held if isinstance(one, Wrapper) else one for one in args]
        return func(*bare, **(kwargs or {}))


class Refuses:
    """An object that raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        if name == "y":
            return object.__getattribute__(self, name)
        raise RuntimeError(f"{name} is sealed")


class Lazy(Mapping[str, Any]):
    """Counts how often it is read."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y, self.reads = y, 0

    def __getitem__(self, key: str) -> Any:
        self.reads += 1
        return self.y

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return iter(["y"])

    def __len__(self) -> int:
        return 1


def _refuses(y: torch.Tensor) -> Any:
    made = Refuses()
    object.__setattr__(made, "y", y)
    return made


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dense": lambda y: y,
    "empty": lambda y: y[:0],
    "conjugate": lambda y: torch.complex(y, y).conj(),
    "nested": lambda y: torch.nested.nested_tensor([y[:1], y[1:]]),
    "jagged": lambda y: torch.nested.nested_tensor([y[:1], y[1:]], layout=torch.jagged),
    "coo": lambda y: y.relu().to_sparse(),
    "csr": lambda y: y.relu().to_sparse_csr(),
    "meta": lambda _: torch.empty(3, device="meta"),
    "mkldnn": lambda y: y.to_mkldnn(),
    "quantised": lambda y: torch.quantize_per_tensor(y, 0.1, 0, torch.qint8),
    "strict": lambda y: y.as_subclass(Strict),
    "wrapper": Wrapper,
    "refuses": _refuses,
    "lazy": Lazy,
    "iterator": lambda y: iter([y, y]),
    "lock": lambda _: threading.Lock(),
    "distribution": lambda y: torch.distributions.Normal(y, torch.ones_like(y)),
}


class Odd(nn.Module):
    """Has something odd in a place, and computes past it."""

    def __init__(self, make: Callable[[torch.Tensor], Any], place: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.make, self.place, self.forwards = make, place, 0
        made = make(torch.ones(2, 4))
        if place == "attribute":
            self.spare = made
        elif place == "buffer" and isinstance(made, torch.Tensor):
            self.register_buffer("spare", made)
        elif place == "parameter" and isinstance(made, torch.Tensor):
            self.spare = nn.Parameter(made, requires_grad=False)

    def forward(self, x: torch.Tensor, _more: Any = None) -> Any:
        self.forwards += 1
        y = self.body(x)
        return (y, self.make(y)) if self.place == "output" else y


def told(value: Any) -> Any:
    """What a program sees of an output."""
    if isinstance(value, tuple):
        return [told(value[0]), type(value[1]).__name__, getattr(value[1], "reads", 0)]
    return digest(value)


def outcomes(step: Callable[[int], Any]) -> list[Any]:
    seen = []
    for index in range(CALLS):
        try:
            seen.append(step(index))
        except Exception as error:
            seen.append(f"{type(error).__name__}: {str(error)[:80]}")
    return seen


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "observed.jsonl"
    monkeypatch.setenv("TIERLINE_OBSERVE", str(path))
    monkeypatch.setattr(process, "_process", process.Process())
    monkeypatch.setattr(nn.Module, "__call__", calls._call)
    monkeypatch.setattr(calls, "_outermost", dispatch.prepare())
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["argument", "output", "attribute", "buffer", "parameter"])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_things_are_the_programs_own(observed: Path, kind: str, place: str) -> None:
    def program() -> tuple[list[Any], int]:
        torch.manual_seed(0)
        try:
            model = Odd(KINDS[kind], place).eval()
        except Exception as error:  # PyTorch does not allow it
            return [repr(error)], 0

        def step(index: int) -> Any:
            more = KINDS[kind](torch.ones(2, 4)) if place == "argument" else None
            with torch.no_grad():
                return told(model(torch.full((2, 4), float(index % 2)), more))

        return outcomes(step), model.forwards

    with invoking(plain):
        expected = program()
    assert program() == expected
    assert expected[1] in {0, CALLS}


SEEN: list[int] = []


class State:
    """Everywhere that a program may keep what a forward changes."""

    runs = 0

    def __init__(self, folder: Path) -> None:
        SEEN.clear()
        State.runs = 0
        self.numbers = iter(range(100))
        self.queue: queue.Queue[int] = queue.Queue()
        for number in range(100):
            self.queue.put(number)
        self.file = (folder / "log").open("w+")
        self.text = io.StringIO()
        self.generator = torch.Generator().manual_seed(1)
        self.cached = functools.lru_cache(lambda number: State.runs + number)
        self.weight = nn.Linear(4, 4)
        self.forwards = 0

    def seen(self) -> Any:
        with self.file as file:
            file.seek(0)
            lines = file.read()
        return (
            *(list(SEEN), State.runs, self.queue.qsize(), next(self.numbers), lines),
            *(self.text.getvalue(), self.generator.get_state().sum().item(), self.forwards),
            self.cached.cache_info().hits,
        )


def _counts(state: State, _: int) -> float:
    type(state).runs += 1
    return float(state.runs)


def _caches(state: State, index: int) -> float:
    _counts(state, index)
    return float(state.cached(index % 3))


def _writes_data(state: State, _: int) -> float:
    state.weight.weight.data += 0.5
    return 0.0


def _writes_in_inference_mode(state: State, _: int) -> float:
    with torch.inference_mode():
        state.weight.weight.detach().mul_(1.5)
    return 0.0


def _raises(_: State, index: int) -> float:
    raise KeyError(index)


def _raises_at_times(_: State, index: int) -> float:
    if index % 3 == 1:
        raise KeyError(index)
    return 0.0


def _makes(state: State, _: int) -> float:
    state.weight = nn.Linear(4, 4)
    return 0.0


def _starts_a_thread(_: State, index: int) -> float:
    thread = threading.Thread(target=SEEN.append, args=(index,))
    thread.start()
    thread.join()
    return 0.0


def _appends(_: State, index: int) -> float:
    SEEN.append(index)
    return float(len(SEEN))


CHANGES: dict[str, Callable[[State, int], float]] = {
    "global": _appends,
    "class": _counts,
    "iterator": lambda state, _: float(next(state.numbers)),
    "queue": lambda state, _: float(state.queue.get()),
    "file": lambda state, _: float(state.file.write("line\n")),
    "text": lambda state, _: float(state.text.write("line\n")),
    "generator": lambda state, _: float(torch.rand((), generator=state.generator)),
    "seed": lambda *_: float(torch.rand(())),
    "cache": _caches,
    "data": _writes_data,
    "inference": _writes_in_inference_mode,
    "raises at times": _raises_at_times,
    "raises": _raises,
    "made": _makes,
    "thread": _starts_a_thread,
}


@pytest.mark.parametrize("what", CHANGES)
def test_state_advances_once_a_call(observed: Path, tmp_path: Path, what: str) -> None:
    class Stateful(nn.Module):
        def __init__(self, state: State) -> None:
            super().__init__()
            self.first, self.state = nn.Linear(4, 4), [state]
            self.own = state.weight

        def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
            state = self.state[0]
            state.forwards += 1
            x = self.first(x) + CHANGES[what](state, index)
            self.own = state.weight
            output: torch.Tensor = self.own(x)
            return output

    def program() -> Any:
        torch.manual_seed(0)
        state = State(tmp_path)
        model = Stateful(state).eval()
        with torch.no_grad():
            seen = outcomes(lambda index: digest(model(torch.ones(2, 4), index)))
        return seen, state.seen()

    with invoking(plain):
        expected = program()
    assert program() == expected
    assert expected[1][-2] == CALLS


def _jvp(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.jvp(model, (x,), (torch.ones_like(x),))[1]


def _grad(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda one: model(one).sum())(x)


def _trace(model: nn.Module, x: torch.Tensor) -> Any:
    traced = torch.jit.trace(model, x, check_trace=False)
    return traced(x), len(list(traced.graph.nodes()))


def _export(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.export.export(model, (x,)).module()(x)


def _functional(model: nn.Module, x: torch.Tensor) -> Any:
    state = {name: one * 2 for name, one in model.state_dict().items()}
    return torch.func.functional_call(model, state, (x,))


TRANSFORMS: list[Callable[[nn.Module, torch.Tensor], Any]] = [
    _jvp,
    _grad,
    lambda model, x: torch.func.jacrev(model)(x),
    lambda model, x: torch.vmap(model)(x),
    _trace,
    lambda model, x: torch.jit.script(model)(x),
    lambda model, x: torch.fx.symbolic_trace(model)(x),
    _export,
    lambda model, x: torch.fx.experimental.proxy_tensor.make_fx(model)(x)(x),
    lambda model, x: torch.compile(model, backend="eager")(x),
    _functional,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("served", [0, 1, 3])
@pytest.mark.parametrize("transform", range(len(TRANSFORMS)))
def test_transforms_are_no_jobs(observed: Path, transform: int, served: int) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval().requires_grad_(False)
        x = torch.ones(2, 4)
        with torch.no_grad():
            seen = [digest(model(x)) for _ in range(served)]
            return seen, [digest(TRANSFORMS[transform](model, x)), digest(model(x))]

    with invoking(plain):
        expected = program()
    assert program() == expected
