from __future__ import annotations

import copy
import enum
import functools
import io
import itertools
import logging
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from tierline_torch import state
from tierline_torch.calls import plain
from tierline_torch.captured import Captured
from tierline_torch.lessons import FirstRun, learn
from tierline_torch.replay import Modes, Replay, note_forward
from tierline_torch.state import State, UnrepeatableError
from tierline_torch.survey import ModuleSurvey


class Restless(nn.Module):
    """Changes everything that it can."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.count = 0
        self.history: list[int] = []
        self.recent: deque[torch.Tensor] = deque(maxlen=2)
        self.table: dict[str, torch.Tensor] = {"kept": torch.zeros(4)}
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history.append(self.count)
        self.recent.append(x.clone())
        self.table["kept"] += 1
        self.table[f"new {self.count}"] = x
        self.seen += x
        if self.cache is None:
            self.cache = x * 2
        self.added = self.count
        x += torch.rand(4) + random.gauss() + np.random.rand()
        return self.linear(x) + self.seen + self.count + self.cache + self.table["kept"]


def repeatable(model: nn.Module, x: torch.Tensor) -> tuple[Replay, torch.Tensor]:
    forward = note_forward(model, (x,), {})
    replay = Replay([forward], State([model]))
    output: torch.Tensor = model(x)
    forward.output.append(output)
    replay.finish()
    return replay, output


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_repetition_gives_the_same_and_leaves_no_trace(mode: Any) -> None:
    model = Restless().eval()
    with mode():
        model(torch.ones(4))
        replay, output = repeatable(model, torch.ones(4))
        for _ in range(3):
            assert torch.equal(replay.run(plain)[0], output)
        assert model.count == 2
        assert model.history == [1, 2]
        assert len(model.recent) == 2
        assert sorted(model.table) == ["kept", "new 1", "new 2"]
        assert model.table["kept"].tolist() == [2.0] * 4


def test_generators_go_on_as_if_nothing_was_repeated() -> None:
    model = Restless().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        replay, _ = repeatable(model, torch.ones(4))
        expected = torch.get_rng_state(), random.getstate()
        replay.run(plain)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]


def test_a_failing_repetition_leaves_no_trace_either() -> None:
    model = Restless().eval()
    with torch.no_grad():
        replay, _ = repeatable(model, torch.ones(4))

        def fails(*call: Any) -> Any:
            plain(*call)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            replay.run(fails)
    assert model.count == 1


def test_modes_are_those_of_the_forward() -> None:
    seen: list[Modes] = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(Modes.current())
            return x

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        replay, _ = repeatable(Looks(), torch.ones(1))
    replay.run(plain)
    assert seen[0] == seen[1]
    assert seen[1].inference
    assert seen[1].autocast


def test_inputs_that_cannot_be_copied_are_told() -> None:
    with pytest.raises(UnrepeatableError, match="inputs of Linear cannot be copied: TypeError"):
        note_forward(nn.Linear(1, 1), (threading.Lock(),), {})


class Base(nn.Module):
    """Two layers, and `advance`: what a forward adds to their output, and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.prepare()

    def prepare(self) -> None: ...

    def advance(self) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second(self.first(x)) + self.advance()
        return output


class OfObject(Base):
    def prepare(self) -> None:
        self.cache = types.SimpleNamespace(seen=[], total=torch.zeros(4))

    def advance(self) -> Any:
        self.cache.seen.append(1)
        self.cache.total += 1
        return len(self.cache.seen) + self.cache.total


@dataclass(slots=True)
class Chain:
    """A plain object without a dictionary, with a cycle, and with what it has only later."""

    values: list[torch.Tensor] = field(default_factory=list)
    count: int = 0
    itself: Chain | None = None
    late: torch.Tensor = field(init=False)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "itself" and hasattr(self, "itself") and self.itself is not None:
            raise AttributeError("never again")
        object.__setattr__(self, name, value)


class OfSlots(Base):
    def prepare(self) -> None:
        self.chain = Chain()
        self.chain.itself = self.chain

    def advance(self) -> Any:
        self.chain.count += 1
        self.chain.values.append(torch.ones(4))
        if not hasattr(self.chain, "late"):
            self.chain.late = torch.zeros(4)
        self.chain.late += self.chain.count
        return sum(self.chain.values) + self.chain.late


class OfTuples(Base):
    def prepare(self) -> None:
        self.table = {"k": (torch.zeros(4), frozenset({"k"}))}

    def advance(self) -> Any:
        self.table["k"][0].add_(1)
        return self.table["k"][0]


class OfArrays(Base):
    def prepare(self) -> None:
        self.array = np.zeros(4, np.float32)
        self.objects = np.array([[], None], dtype=object)

    def advance(self) -> Any:
        self.array += 1
        self.objects[0].append(1)
        self.objects[1] = len(self.objects[0])
        return torch.from_numpy(self.array.copy()) + self.objects[1]


class OfGenerators(Base):
    def prepare(self) -> None:
        self.ours = torch.Generator().manual_seed(3)
        self.pythons = random.Random(3)  # noqa: S311 - chosen for what it is
        self.numpys = np.random.default_rng(3)
        self.old = np.random.RandomState(3)
        self.bits = np.random.PCG64(3)

    def advance(self) -> Any:
        one = self.pythons.gauss() + self.numpys.random() + self.old.rand()
        return torch.rand(4, generator=self.ours) + one + self.bits.random_raw() % 1000

    def __deepcopy__(self, memo: object) -> OfGenerators:
        copied = OfGenerators()
        copied.load_state_dict(self.state_dict())
        return copied


class Strict(OrderedDict[str, int]):
    """Lets nobody change it from outside."""

    note: list[int]

    def clear(self) -> None:
        raise TypeError("no")

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("no")


class Counter(nn.Module):
    """Held in a list, it is no submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self) -> int:
        self.seen += 1
        return self.seen


class OfContainers(Base):
    def prepare(self) -> None:
        self.strict = Strict(first=1, second=2)
        self.strict.note = []
        self.counters = [Counter()]
        self.count = functools.partial(self._count, into={"n": 0})

    def _count(self, into: dict[str, int]) -> int:
        into["n"] += 1
        return into["n"]

    def advance(self) -> Any:
        self.strict.move_to_end("first")
        self.strict[f"new {len(self.strict)}"] = 1
        self.strict.note.append(1)
        return len(self.strict) + len(self.strict.note) + self.counters[0]() + self.count()


class OfHooks(Base):
    """What a hook keeps is a variable of the program's, seen in its closure."""

    def prepare(self) -> None:
        seen: list[torch.Tensor] = []
        calls = 0

        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            seen.append(output)
            return output + len(seen) + calls

        self.first.register_forward_hook(hook)

    def advance(self) -> Any:
        return 0

    def __deepcopy__(self, memo: object) -> OfHooks:
        copied = OfHooks()
        copied.load_state_dict(self.state_dict())
        return copied


STATEFUL = [OfObject, OfSlots, OfTuples, OfArrays, OfGenerators, OfContainers, OfHooks]


@pytest.mark.parametrize("kind", STATEFUL)
def test_what_a_forward_reaches_is_put_back(kind: type[Base]) -> None:
    model = kind().eval()
    expected = copy.deepcopy(model)
    with torch.no_grad():
        replay, output = repeatable(model, torch.ones(4))
        assert torch.equal(output, expected(torch.ones(4)))
        for _ in range(3):
            assert torch.equal(replay.run(plain)[0], output)
        for _ in range(3):
            assert torch.equal(model(torch.ones(4)), expected(torch.ones(4)))


class OfParameters(Base):
    def prepare(self) -> None:
        self.steps = nn.Parameter(torch.zeros(4), requires_grad=False)

    def advance(self) -> Any:
        return self.steps.add_(1)


class OfIterators(Base):
    def prepare(self) -> None:
        self.numbers: Iterator[int] = itertools.count()

    def advance(self) -> Any:
        return next(self.numbers)


class OfSteps(Base):
    def prepare(self) -> None:
        self.numbers = (one for one in range(100))

    def advance(self) -> Any:
        return next(self.numbers)


class OfFiles(Base):
    def prepare(self) -> None:
        self.file = io.StringIO("123456789")

    def advance(self) -> Any:
        return int(self.file.read(1))


class OfReaders(Base):
    def prepare(self) -> None:
        self.reader = io.BufferedReader(io.BytesIO(b"123456789"))

    def advance(self) -> Any:
        return int(self.reader.read(1))


class OfSizes(Base):
    def prepare(self) -> None:
        self.grown = torch.zeros(1)

    def advance(self) -> Any:
        self.grown.resize_(self.grown.numel() + 1).fill_(1)
        return self.grown.sum()


class OfExchanges(Base):
    def prepare(self) -> None:
        self.steps = nn.Parameter(torch.zeros(4))

    def advance(self) -> Any:
        self.steps = nn.Parameter(self.steps + 1)
        return self.steps


class OfLazies(Base):
    def prepare(self) -> None:
        self.lazy = nn.LazyLinear(4)

    def advance(self) -> Any:
        return self.lazy(torch.ones(4))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OfParameters, "a forward writes OfParameters.steps"),
        (OfIterators, "OfIterators.numbers holds .*: count"),
        (OfSteps, "OfSteps.numbers holds .*: generator"),
        (OfFiles, "OfFiles.file holds .*: StringIO"),
        (OfReaders, "OfReaders.reader holds .*: BufferedReader"),
        (OfSizes, "a forward resizes OfSizes.grown"),
        (OfExchanges, "a forward of OfExchanges exchanges its parameters"),
        (OfLazies, "a forward writes LazyLinear"),
    ],
)
def test_what_cannot_be_put_back_is_told_before_a_repetition(kind: type[Base], reason: str) -> None:
    model = kind().eval()
    forwards = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with torch.no_grad(), pytest.raises(UnrepeatableError, match=reason):
        repeatable(model, torch.ones(4))
    assert forwards == [1]


def test_parameters_that_are_written_are_no_weights_and_pin_the_others() -> None:
    model = OfParameters().eval()
    expected = copy.deepcopy(model)
    first = FirstRun(ModuleSurvey())
    with torch.inference_mode():
        with first.watching():
            first.outermost(model, (torch.ones(4),), {})
        expected(torch.ones(4))
        lesson = learn(first, lambda _: False, nullcontext)
        assert lesson is not None
        (entry,) = lesson.contents.entries
        assert entry.name == "pinned: a forward writes OfParameters.steps"
        assert sum(weight.size_bytes for weight, _ in lesson.contents.placed) == 2 * (16 + 4) * 4
        assert lesson.repeat is None
        assert torch.equal(model(torch.ones(4)), expected(torch.ones(4)))


class Colour(enum.Enum):
    RED = (1,)


class Ordinary(Base):
    """Holds what models hold, and changes none of it."""

    def prepare(self) -> None:
        self.held: list[Any] = [
            *(Colour.RED, nn.functional.gelu, torch.float16, torch.device("cpu"), torch.Size([1])),
            *(functools.partial(nn.LayerNorm, eps=1e-6), weakref.ref(self), weakref.proxy(self)),
            *(threading.Lock(), threading.Condition(), threading.local(), sys.stderr),
            *(logging.getLogger("model"), np.float32, np.dtype("f4"), object(), slice(1), range(3)),
            *(lambda x: x, self.forward, [].append, max, int, nn, Chain(), iter([1, 2])),
            *(torch.randn(2, 2).to_sparse(), np.broadcast_to(np.zeros(1), 9), self, io.StringIO()),
            *(io.BufferedReader(io.BytesIO(b"1")), torch.zeros(4), np.zeros(4)),
            types.MappingProxyType({"a": 1}),
        ]

    def advance(self) -> Any:
        with self.held[8]:
            return 0


def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    return BertModel(config)


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2))


def compiled() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model.compile(backend="eager")
    return model


def traced() -> nn.Module:
    traced: nn.Module = torch.jit.trace(nn.Sequential(nn.Linear(4, 4)).eval(), torch.ones(4))
    return traced


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize(
    ("make", "given"),
    [
        (Ordinary, torch.ones(4)),
        (bert, torch.arange(4)[None]),
        (gpt2, torch.arange(4)[None]),
        (compiled, torch.ones(4)),
        (traced, torch.ones(4)),
        (lambda: nn.LSTM(4, 4), torch.ones(1, 4)),
        (lambda: Captured(Ordinary()), torch.ones(4)),
        (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4))), torch.ones(4)),
    ],
)
def test_ordinary_models_are_repeated(make: Callable[[], nn.Module], given: torch.Tensor) -> None:
    model = make().eval()
    with torch.no_grad():
        noted = note_forward(model, (given,), {})
        replay = Replay([noted], State([model]))
        model(given)
        replay.finish()
        replay.run(plain)
        model(given)


class Script(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.total = nn.Buffer(torch.zeros(4))
        self.last = torch.zeros(4)
        self.count: int = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.last = self.last + x
        self.count += 1
        output: torch.Tensor = self.linear(x)
        return output + self.total + self.last + self.count


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_a_compiled_module_has_its_state_back() -> None:
    model = Script().eval()
    script = torch.jit.script(copy.deepcopy(model))
    with torch.no_grad():
        replay, output = repeatable(script, torch.ones(4))
        assert torch.equal(model(torch.ones(4)), output)
        for _ in range(3):
            assert torch.equal(replay.run(plain)[0], output)
        for _ in range(3):
            assert torch.equal(script(torch.ones(4)), model(torch.ones(4)))


def test_a_graph_that_was_captured_is_not_put_back() -> None:
    """It is captured once; a repetition would capture it again."""
    model = Captured(nn.Linear(4, 4)).eval()
    with torch.no_grad():
        replay, _ = repeatable(model, torch.ones(4))
        model._graphs.refused = True
        replay.run(plain)
    assert model._graphs.refused


@pytest.mark.parametrize("kind", [OfObject, OfArrays])
def test_what_is_too_large_to_be_copied_is_compared(
    kind: type[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_MOST_COPIED_BYTES", 8)
    with torch.no_grad():
        repeatable(Ordinary().eval(), torch.ones(4))
        with pytest.raises(UnrepeatableError, match=f"a forward writes {kind.__name__}"):
            repeatable(kind().eval(), torch.ones(4))


def test_what_leads_into_the_program_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_MOST_OBJECTS", 1000)
    model = Restless()
    chain: list[Any] = []
    model.chain = chain  # type: ignore[assignment]
    for _ in range(900):
        chain.append([])
        chain = chain[0]
    State([model])
    chain += [[] for _ in range(100)]
    with pytest.raises(UnrepeatableError, match=r"Restless.chain leads to more than 1000 objects"):
        State([model])
