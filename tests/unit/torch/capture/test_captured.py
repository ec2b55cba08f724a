"""Captured models where there is no GPU: they run as they are. With one: tests/gpu."""

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import tierline
from tierline_torch.calls import current
from tierline_torch.capture import captured
from tierline_torch.tensors.writes import Writes


def test_a_model_on_the_cpu_runs_as_it_is() -> None:
    model = nn.Linear(3, 2).eval()
    wrapped = tierline.captured(model)
    given = torch.randn(4, 3)
    with torch.inference_mode():
        assert torch.equal(wrapped(given), model(given))
        assert torch.equal(wrapped(input=given), model(given))
    assert [name for name, _ in wrapped.named_parameters()] == ["module.weight", "module.bias"]


def test_a_copy_has_no_graphs_and_the_same_weights() -> None:
    wrapped = tierline.captured(nn.Linear(3, 2).eval())
    copied = pickle.loads(pickle.dumps(copy.deepcopy(wrapped)))  # noqa: S301 - made here
    given = torch.randn(4, 3)
    with torch.inference_mode():
        assert torch.equal(wrapped(given), copied(given))


def test_gradients_flow_through_it() -> None:
    wrapped = tierline.captured(nn.Linear(3, 2))
    wrapped(torch.randn(4, 3)).sum().backward()
    assert all(one.grad is not None for one in wrapped.parameters())


class Recorded(TorchDispatchMode):
    """In a graph's place: the operations of one call, on the memory that they had."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        with torch.random.fork_rng(), self:  # a capture computes nothing, so it draws nothing
            self.result = call()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        memory = (args, kwargs or {}, result)
        self.steps.append((func, *pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, memory)))
        return result

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, result in self.steps:
            fresh = func(*args, **kwargs)
            for own, one in zip(pytree.tree_leaves(result), pytree.tree_leaves(fresh), strict=True):
                if isinstance(own, torch.Tensor):
                    own.copy_(one)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """What is captured, where there is no GPU."""
    made: list[Recorded] = []

    def make(call: Callable[[], Any], writes: Writes, _warm: object) -> tuple[Recorded, Any]:
        with writes:
            made.append(Recorded(call))
        return made[-1], made[-1].result

    # another test may have compiled something
    monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)
    monkeypatch.setattr(captured, "_captured", make)
    monkeypatch.setattr(captured, "_WARM_UPS", 0)
    monkeypatch.setattr(captured, "_on_gpu", bool)
    return made


class Sums(nn.Module):
    def forward(self, one: Any, other: Any = None, *, factor: float = 1.0) -> Any:
        given = pytree.tree_leaves((one, other))
        total = sum(leaf for leaf in given if isinstance(leaf, torch.Tensor))
        return {"sum": total * factor, "twice": (total * 2,)}


def test_each_shape_of_arguments_has_its_graph(graphs: list[Recorded]) -> None:
    model = Sums().eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for _ in range(3):
            one, other = torch.randn(2, 3), torch.randn(2, 3)
            for args, kwargs in (
                ((one,), {}),
                ((one, other), {}),
                ((one[:1],), {}),
                (([one, other],), {}),
                ((one, 3), {}),
                ((one,), {"other": other}),
                ((one,), {"factor": 2.0}),
            ):
                found = pytree.tree_flatten(wrapped(*args, **kwargs))
                wanted = pytree.tree_flatten(model(*args, **kwargs))
                assert found[1] == wanted[1]
                assert all(torch.equal(*two) for two in zip(found[0], wanted[0], strict=True))
    assert len(graphs) == 7


class Forwards(nn.Module):
    def __init__(self, *, opaque: bool = False) -> None:
        super().__init__()
        self.forwards = 0
        self.opaque = opaque

    def forward(self, given: torch.Tensor) -> Any:
        self.forwards += 1
        return SimpleNamespace(one=given * 2) if self.opaque else given * 2


@pytest.fixture
def warming(graphs: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The same after calls as on a GPU, on its stream."""

    def run(self: captured._Warm, call: Callable[[], Any]) -> Any:
        self.calls += 1
        return call()

    monkeypatch.setattr(captured, "_WARM_UPS", 3)
    monkeypatch.setattr(captured._Warm, "run", run)
    return graphs


def test_each_call_runs_the_model_once_until_a_graph_does(warming: list[Recorded]) -> None:
    model = Forwards().eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for shape in ((2,), (3,)):
            before = model.forwards
            for number in range(1, 8):
                value = float(number)
                assert wrapped(torch.full(shape, value)).tolist() == [2 * value] * shape[0]
                assert model.forwards - before == min(number, 4)
    assert [graph.replays for graph in warming] == [4, 4]
    assert captured.preparations() >= 8


def test_a_capture_that_fails_is_said_and_never_tried_again(
    warming: list[Recorded], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(call: Callable[[], Any], *_: object) -> None:
        call()
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(captured, "_captured", refuse)
    model = Forwards().eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for number in range(6):
            assert wrapped(torch.full((1,), float(number))).item() == 2 * number
    assert model.forwards == 7
    said = capsys.readouterr().err
    assert said.count("runs without a graph") == 1
    assert "is capturing; to find out, its forward ran once more than it was called" in said


def test_what_shows_before_a_capture_costs_no_forward(
    warming: list[Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    model = Forwards(opaque=True).eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for number in range(5):
            assert wrapped(torch.full((1,), float(number))).one.item() == 2 * number
    assert model.forwards == 5
    assert not warming
    assert "nothing tells which tensors are in the SimpleNamespace" in capsys.readouterr().err


def test_a_model_that_writes_to_its_inputs_runs_as_it_is(warming: list[Recorded]) -> None:
    class Writes(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return given.add_(1) * 2

    wrapped = captured.Captured(Writes().eval())
    with torch.inference_mode():
        for number in range(6):
            given = torch.full((1,), float(number))
            assert wrapped(given).item() == 2 * (number + 1)
            assert given.item() == number + 1


def test_only_what_is_captured_runs_without_the_lease(
    graphs: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[int] = []

    @contextmanager
    def without_lease() -> Iterator[None]:
        inside.append(len(graphs))
        yield
        inside.append(len(graphs))

    monkeypatch.setattr(current, "without_lease", without_lease)
    wrapped = captured.Captured(nn.Linear(3, 2).eval())
    with torch.inference_mode():
        for _ in range(2):
            wrapped(torch.ones(1, 3))
    assert inside == [0, 1]


def test_equal_arguments_of_other_types_have_graphs_of_their_own(graphs: list[Recorded]) -> None:
    class Mode(Enum):
        FAST = 1

    model = Sums().eval()
    wrapped = captured.Captured(model)
    given = torch.tensor([1, -2])
    factors = (2, 2.0, 1, True, 0.0, -0.0)
    with torch.inference_mode():
        for _ in range(2):
            for factor in factors:
                found, wanted = (one(given, factor=factor)["sum"] for one in (wrapped, model))
                assert found.dtype == wanted.dtype
                assert torch.equal(1 / found, 1 / wanted)
            for other in (None, "text", torch.float16, Mode.FAST):
                wrapped(given, other)
    assert len(graphs) == len(factors) + 4


def test_each_mode_of_the_caller_has_its_graph(graphs: list[Recorded]) -> None:
    wrapped = captured.Captured(Sums().eval())
    given = torch.ones(2)

    def both() -> None:
        for mode in (torch.inference_mode, torch.no_grad):
            for _ in range(2):
                with mode():
                    assert wrapped(given)["sum"].is_inference() is (mode is torch.inference_mode)

    both()
    assert len(graphs) == 2
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cuda", dtype)
            both()
    finally:
        torch.set_autocast_dtype("cuda", before)
        torch.set_autocast_enabled("cuda", False)
    assert len(graphs) == 6


def _in_itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "argument",
    [
        pytest.param(np.ones(2), id="an array"),
        pytest.param({1, 2}, id="a set"),
        pytest.param(SimpleNamespace(factor=2), id="an object that cannot be hashed"),
        pytest.param(nn.ReLU(), id="an object that may change"),
        pytest.param(_in_itself(), id="a list in itself"),
    ],
)
def test_with_an_argument_that_may_change_it_runs_as_it_is(
    argument: Any, graphs: list[Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    class Takes(nn.Module):
        def forward(self, given: torch.Tensor, other: Any) -> torch.Tensor:
            return given * (1 if other is argument else 2)

    wrapped = captured.Captured(Takes().eval())
    given = torch.ones(2)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(wrapped(given, argument), given)
        assert not graphs
        assert torch.equal(wrapped(given, 1), given * 2)
    assert len(graphs) == 1
    assert capsys.readouterr().err.count("runs without a graph for some arguments") <= 1


def test_a_model_whose_output_may_hide_tensors_runs_as_it_is(
    graphs: list[Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    class Hides(nn.Module):
        def forward(self, given: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(twice=given * 2)

    wrapped = captured.Captured(Hides().eval())
    with torch.inference_mode():
        first, second = (wrapped(torch.full((1,), value)) for value in (1.0, 2.0))
    assert (first.twice.item(), second.twice.item()) == (2, 4)
    assert len(graphs) == 1
    assert "Hides runs without a graph: nothing tells which tensors are in the Simple" in (
        capsys.readouterr().err
    )


class Small(nn.Module):
    scale: torch.Tensor
    shift: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.parts = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5), nn.Identity())
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("shift", None)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        computed: torch.Tensor = self.parts(self.linear(given)) * self.scale
        return computed if self.shift is None else computed + self.shift


def _swap(model: Small) -> None:
    torch.utils.swap_tensors(model.linear.weight, nn.Parameter(model.linear.weight * 2))


def _doubled(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one * 2 for name, one in model.state_dict().items()}


def _assign(model: Small) -> None:
    model.load_state_dict(_doubled(model), assign=True)


def _set_data(model: Small) -> None:
    model.linear.weight.data = model.linear.weight.data * 3


def _set_buffer(model: Small) -> None:
    model.scale = model.scale * 3


def _fill_buffer(model: Small) -> None:
    model.shift = torch.rand(8)


def _set_bias(model: Small) -> None:
    model.parts[0].bias = nn.Parameter(torch.rand(8))


def _other_module(model: Small) -> None:
    model.parts[2] = nn.Tanh()


def _parametrize(model: Small) -> None:
    nn.utils.parametrizations.weight_norm(model.parts[0])


def _train(model: Small) -> None:
    model.parts[1].train()


def _double(model: Small) -> None:
    model.double().float()


@pytest.mark.parametrize(
    "change",
    [
        _assign,
        _set_data,
        _swap,
        _set_buffer,
        _fill_buffer,
        _set_bias,
        _other_module,
        _parametrize,
        _train,
        _double,
    ],
)
def test_a_changed_model_is_captured_again(
    change: Callable[[Small], None], graphs: list[Recorded]
) -> None:
    model = Small().eval()
    wrapped = tierline.captured(model)
    given = torch.randn(4, 8)

    def both() -> list[torch.Tensor]:
        found = []
        for one in (wrapped, model):
            torch.manual_seed(0)
            found.append(one(given))
        return found

    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(*both())
            assert torch.equal(wrapped(given[:2]), model(given[:2]))
        assert len(graphs) == 2
        change(model)
        for _ in range(3):
            assert torch.equal(*both())
    assert len(graphs) == 3


class Counts(nn.Module):
    """Has state on the GPU: what it adds to its input, in a buffer or out of PyTorch's sight."""

    seen: torch.Tensor

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        if registered:
            self.register_buffer("seen", torch.zeros(4))
        else:
            self.held = [torch.zeros(4)]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        seen = self.held[0] if hasattr(self, "held") else self.seen
        seen[:2].add_(1)
        computed: torch.Tensor = self.linear(given).relu_() + seen
        return computed


@pytest.mark.parametrize("registered", [True, False])
def test_state_is_advanced_once_though_the_weights_were_exchanged(
    registered: bool, graphs: list[Recorded]
) -> None:
    model = Counts(registered=registered).eval()
    plain = copy.deepcopy(model)
    wrapped = tierline.captured(model)
    given = torch.randn(2, 4)
    with torch.no_grad():
        wrapped(given)
        (model.seen if registered else model.held[0]).zero_()  # of the capture
        for _ in range(2):
            assert torch.equal(wrapped(given), plain(given))
        model.linear.weight.data = plain.linear.weight.data = torch.rand(4, 4)
        assert torch.equal(wrapped(given), plain(given))
    assert graphs[0].replays == 3


class Draws(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + torch.rand_like(given)


class Temporaries(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made = given * 2
        made[:1] += 1
        return torch.cat([made.relu_(), made], out=torch.empty(2 * len(made), 8))


@pytest.mark.parametrize(
    ("model", "replays"),
    [
        pytest.param(Draws(), 2, id="it draws random numbers"),
        pytest.param(Counts(registered=True), 2, id="it has state"),
        pytest.param(Temporaries(), 3, id="it writes what it made itself"),
        pytest.param(nn.BatchNorm1d(8).train(), 2, id="it learns what is normal"),
        pytest.param(nn.BatchNorm1d(8).eval(), 3, id="it knows what is normal"),
        pytest.param(nn.Dropout(), 2, id="it leaves out some"),
        pytest.param(Small().eval(), 3, id="it writes nothing"),
    ],
)
def test_a_graph_runs_in_vain_only_if_nothing_is_left_of_it(
    model: nn.Module, replays: int, graphs: list[Recorded]
) -> None:
    rest = nn.Identity()
    wrapped = captured.Captured(nn.Sequential(model, rest))
    given = torch.ones(2, 4 if isinstance(model, Counts) else 8)
    with torch.no_grad():
        for _ in range(2):
            wrapped(given)
        rest.eval()
        wrapped(given)
    assert graphs[0].replays == replays


def test_weights_written_in_place_need_no_new_graph(graphs: list[Recorded]) -> None:
    model = Small().eval()
    wrapped = tierline.captured(model)
    given = torch.randn(4, 8)
    with torch.no_grad():
        wrapped(given)
        model.load_state_dict(_doubled(model))
        assert torch.equal(wrapped(given), model(given))
    assert len(graphs) == 1


def test_weights_of_one_call_only_are_not_captured(graphs: list[Recorded]) -> None:
    wrapped = tierline.captured(Small().eval())
    given = torch.randn(4, 8)
    with torch.no_grad():
        plain = wrapped(given)
        for _ in range(3):
            nothing = {"module.linear.weight": torch.zeros(8, 8)}
            called = torch.func.functional_call(wrapped, nothing, (given,))
            assert not torch.equal(called, plain)
            assert torch.equal(wrapped(given), plain)
    assert len(graphs) == 1


def test_the_address_of_weights_may_come_back_with_others(graphs: list[Recorded]) -> None:
    memory = np.arange(4, dtype=np.float32)
    model = nn.Linear(2, 2, bias=False).eval()
    wrapped = tierline.captured(model)
    given = torch.tensor([[1.0, 10.0]])
    with torch.no_grad():
        model.weight.data = torch.from_numpy(memory).view(2, 2)
        wrapped(given)
        graphs[0].steps.clear()  # a graph keeps no memory alive
        model.weight.data = torch.empty(2, 2)
        model.weight.data = torch.from_numpy(memory).view(2, 2).t()
        for _ in range(3):
            assert torch.equal(wrapped(given), model(given))
    assert len(graphs) == 2


def test_weights_that_were_exchanged_are_let_go(graphs: list[Recorded]) -> None:
    model = nn.Linear(2, 2).eval()
    wrapped = captured.Captured(model)
    with torch.no_grad():
        wrapped(torch.ones(1, 2))
        graphs[0].steps.clear()  # a graph keeps no memory alive
        gone = weakref.ref(model.weight)
        storage = weakref.ref(model.weight.untyped_storage())
        model.load_state_dict(_doubled(model), assign=True)
        gc.collect()
    assert gone() is None
    assert storage() is None


def test_a_buffer_that_grows_with_the_input(graphs: list[Recorded]) -> None:
    class Grows(nn.Module):
        table: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(1.0))

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            if len(given) > len(self.table):
                self.table = torch.arange(float(len(given)))
            return given + self.table[: len(given)]

    model = Grows().eval()
    wrapped = captured.Captured(model)
    with torch.inference_mode():
        for length in (2, 4, 2, 4, 2, 4):
            assert torch.equal(
                wrapped(torch.ones(length)), torch.ones(length) + model.table[:length]
            )
    assert len(graphs) == 3  # the first is of a table that is gone


def test_a_model_without_weights_yet_runs_as_it_is(graphs: list[Recorded]) -> None:
    model = nn.LazyLinear(2).eval()
    wrapped = captured.Captured(model)
    given = torch.ones(1, 3)
    with torch.no_grad():
        wrapped(given)
        assert not graphs
        for _ in range(2):
            assert torch.equal(wrapped(given), model(given))
    assert len(graphs) == 1


class Opaque(torch.Tensor):
    """Has no bytes of its own, and does not tell where they are."""

    within: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.within = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = pytree.tree_map_only(cls, lambda one: one.within, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Wrapper(Opaque):
    """Does tell."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["within"], None


class Scales(nn.Module):
    scale: torch.Tensor

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale


def test_weights_that_wrap_others_count_by_the_memory_of_these(graphs: list[Recorded]) -> None:
    model = Scales(Wrapper(torch.full((2,), 1.0))).eval()
    wrapped = captured.Captured(model)
    with torch.no_grad():
        for value in (2.0, 3.0, 4.0):
            other = Wrapper(torch.full((2,), value))
            if value == 4.0:
                torch.utils.swap_tensors(model.scale, other)
            else:
                model.scale = other
            for _ in range(3):
                assert torch.equal(wrapped(torch.ones(2)), torch.full((2,), value))
    assert len(graphs) == 3


def test_with_weights_whose_memory_is_not_known_it_runs_as_it_is(graphs: list[Recorded]) -> None:
    model = Scales(Opaque(torch.full((2,), 2.0))).eval()
    wrapped = captured.Captured(model)
    with torch.no_grad():
        for value in (2.0, 3.0):
            torch.utils.swap_tensors(model.scale, Opaque(torch.full((2,), value)))
            for _ in range(3):
                assert torch.equal(wrapped(torch.ones(2)), torch.full((2,), value))
    assert not graphs


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_frozen_script_has_graphs_though_it_is_in_no_mode(graphs: list[Recorded]) -> None:
    model = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()))
    wrapped = captured.Captured(model)
    given = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(wrapped(given), model(given))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_scripted_model_is_looked_at_as_well(graphs: list[Recorded]) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout()).eval())
    wrapped = captured.Captured(model)
    given = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(wrapped(given), model(given))
        assert len(graphs) == 1
        model.load_state_dict(_doubled(model), assign=True)
        for _ in range(3):
            assert torch.equal(wrapped(given), model(given))
    assert len(graphs) == 2
