"""Planned steps have the bits of the model as it is: outputs, gradients, buffers, the optimizer's.

Budgets are between floor and peak, so that operators run again; each net is compiled once.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.integration.torch.planned import nets
from torch import nn
from torch.nn import functional

import tierline
from tierline_steps.bound import floor
from tierline_steps.graph import Graph
from tierline_steps.plan import Plan, Queue
from tierline_torch.errors import TierlineError
from tierline_torch.planned.backend import Backend
from tierline_torch.planned.backend import tierline as backend_named_tierline
from tierline_torch.planned.execution import Arena
from tierline_torch.tensors.workspace import WorkspaceMeter

Batch = tuple[torch.Tensor, torch.Tensor]


class Tight(Backend):
    """Plans each graph for a share of what lies between its floor and its peak."""

    def __init__(self, share: float) -> None:
        super().__init__(0, 0.1)
        self.share = share
        self.graphs: list[Graph] = []

    def _plan(self, graph: Graph) -> Plan:
        least = floor(graph).least_bytes
        self.budget_bytes = round(least + self.share * (graph.peak_bytes() - least))
        self.graphs.append(graph)
        return super()._plan(graph)

    def again(self) -> int:
        """How many steps of all plans are second runs."""
        return sum(
            len(plan.queues[Queue.COMPUTE]) - len(graph.operators)
            for plan, graph in zip(self.plans, self.graphs, strict=True)
        )


def images() -> Batch:
    return torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))


def words() -> Batch:
    return torch.randint(0, 100, (2, 16)), torch.randint(0, 100, (32,))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch], float]] = {
    "BatchNorm and in-place ReLU": (nets.Convolutions, images, 0.3),
    "attention, embedding, tied weights": (nets.Language, words, 0.6),
    "dropout": (lambda: nets.Language(blocks=2, dropout=0.2), words, 0.6),
    "skips": (nets.Skips, images, 0.4),
    "one branch twice": (
        nets.Twice,
        lambda: (torch.randn(8, 16), torch.randint(0, 10, (8,))),
        0.9,
    ),
    "recurrent": (
        nets.Recurrent,
        lambda: (torch.randn(6, 8, 4), torch.randint(0, 10, (6,))),
        0.5,
    ),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(before)


def compiled(model: nn.Module, backend: Backend) -> Any:
    return torch.compile(model, backend=backend, dynamic=False)


def loss_of(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.reshape(-1, output.shape[-1]), wanted)


def trained(model: nn.Module, call: Any, batches: list[Batch]) -> list[torch.Tensor]:
    """All that a program can see of some steps: losses, outputs, weights, buffers."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(5)
    seen = []
    for given, wanted in batches:
        output = call(given)
        loss = loss_of(output, wanted)
        loss.backward()
        seen += [
            output,
            loss,
            *(one.grad.clone() for one in model.parameters() if one.grad is not None),
        ]
        optimizer.step()
        optimizer.zero_grad()
    return [*(one.detach() for one in seen), *model.state_dict().values()]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", NETS)
def test_five_steps_have_the_bits_of_the_model_as_it_is(name: str) -> None:
    make, batch, share = NETS[name]
    torch.manual_seed(1)
    model = make()
    other = copy.deepcopy(model)
    batches = [batch() for _ in range(5)]
    backend = Tight(share)
    found = trained(other, compiled(other, backend), batches)
    assert_same(found, trained(model, model, batches))
    assert backend.again() > 0
    assert len(backend.plans) == 1


@pytest.fixture
def language() -> tuple[nn.Module, Any, list[Batch], Tight]:
    torch.manual_seed(1)
    model, backend = nets.Language(blocks=2), Tight(0.6)
    return model, compiled(model, backend), [words() for _ in range(3)], backend


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    return found


def test_two_forwards_before_a_backward(language: Any) -> None:
    """The second has memory of its own; without the guard PyTorch refuses the first's backward."""
    model, call, batches, _ = language

    def both(call: Any) -> list[torch.Tensor]:
        losses = [loss_of(call(given), wanted) for given, wanted in batches[:2]]
        weights = list(model.parameters())
        return [one for loss in losses for one in torch.autograd.grad(loss, weights)]

    for _ in range(2):
        assert_same(both(call), both(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "_sized", lambda arena, *_: arena._bytes)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            both(call)


def test_backwards_in_another_order_and_twice(language: Any) -> None:
    model, call, batches, _ = language

    def odd(call: Any) -> None:
        first, second = (loss_of(call(given), wanted) for given, wanted in batches[:2])
        second.backward()
        first.backward(retain_graph=True)
        first.backward()

    odd(call)
    found = gradients(model)
    odd(model)
    assert_same(found, gradients(model))


def test_gradients_that_accumulate_are_the_programs(language: Any) -> None:
    model, call, batches, _ = language

    def accumulated(call: Any) -> list[torch.Tensor]:
        for given, wanted in batches:
            loss_of(call(given), wanted).backward()
            held.append(model.words.weight.grad)
        return gradients(model)

    held: list[torch.Tensor] = []
    assert_same(accumulated(call), accumulated(model))
    loss_of(call(batches[0][0]), batches[0][1]).backward()
    kept = model.words.weight.grad
    before = kept.clone()
    model.zero_grad()
    loss_of(call(batches[1][0]), batches[1][1]).backward()
    assert torch.equal(kept, before)  # the program has it still, so the arena was not free


def test_outputs_that_the_program_keeps_stay(language: Any) -> None:
    _, call, batches, _ = language
    kept, copies = [], []
    for given, wanted in batches:
        output = call(given)
        kept.append(output)
        copies.append(output.detach().clone())
        loss_of(output, wanted).backward()
    assert_same([one.detach() for one in kept], copies)


def test_a_forward_that_is_dropped_gives_the_arena_back(language: Any) -> None:
    _, call, batches, backend = language
    call(batches[0][0])
    with backend.arena.taken(1, torch.device("cpu")) as arena:
        assert arena is not None


def test_a_forward_in_another_thread_during_a_step(language: Any) -> None:
    model, call, batches, _ = language
    loss = loss_of(call(batches[0][0]), batches[0][1])
    other: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: other.append(call(batches[1][0]).detach()))
    thread.start()
    thread.join()
    loss.backward()
    found = gradients(model)
    loss_of(model(batches[0][0]), batches[0][1]).backward()
    assert_same(found, gradients(model))
    assert torch.equal(other[0], model(batches[1][0]))


def test_the_allocator_reports_no_more_than_the_budget() -> None:
    """Of kernels that allocate nothing but what they give: convolutions take more on a CPU."""
    model, backend = WithLoss(nets.Language(32, 4)), Tight(0.5)
    call = compiled(model, backend)
    given, wanted = torch.randint(0, 100, (8, 64)), torch.randint(0, 100, (512,))

    def step(call: Any) -> None:
        call(given, wanted).backward()
        model.zero_grad()

    step(call)
    (graph,) = backend.graphs
    fixed = graph.live_in_bytes - graph.values[-1].size_bytes  # weights and inputs
    held = backend.arena._bytes.numel()
    assert peak_bytes(lambda: step(call)) + held + fixed <= backend.budget_bytes
    assert peak_bytes(lambda: step(model)) + fixed > backend.budget_bytes


class WithLoss(nn.Module):
    """So that nothing is allocated outside of the graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model(given), wanted)


def peak_bytes(run: Callable[[], None]) -> int:
    """What is allocated at once at most meanwhile."""
    meter = WorkspaceMeter()
    meter.begin([])
    run()
    meter.end()
    assert meter.peak_bytes is not None
    return meter.peak_bytes


def test_an_inference_is_planned_too() -> None:
    model, backend = nets.Convolutions().eval(), Tight(0.5)
    call = compiled(model, backend)
    with torch.no_grad():
        for given, _ in (images(), images()):
            assert torch.equal(call(given), model(given))
    assert len(backend.plans) == 1


def test_what_cannot_be_captured_runs_as_it_is_and_says_why_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, (given,), _ = nets.peeking()
    backend = Backend(1 << 30)
    call = compiled(model, backend)
    for _ in range(2):
        assert torch.equal(call(given + 1), model(given + 1))
    assert not backend.plans
    said = capsys.readouterr().err
    assert said.count("a model runs as it is, without a bound on its memory: ") == 1


@pytest.mark.parametrize(("memory", "said"), [("4GB", "unknown unit 'GB'"), ("", "write for")])
def test_memory_that_is_none_is_refused_at_once(memory: str, said: str) -> None:
    with pytest.raises(TierlineError, match=said):
        tierline.planned(nets.Convolutions(), memory)


def test_the_backend_by_its_name_takes_its_bound_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    model = nets.Twice()
    by_name = torch.compile(model, backend=backend_named_tierline, dynamic=False)
    given = torch.randn(8, 16)
    with pytest.raises(Exception, match="set TIERLINE_MEMORY, for instance 4GiB"):
        by_name(given)
    monkeypatch.setenv("TIERLINE_MEMORY", "1GiB")
    torch._dynamo.reset()
    torch.manual_seed(2)
    found = by_name(given)
    torch.manual_seed(2)
    assert torch.equal(found, model(given))


def test_too_little_memory_is_an_error_that_names_what_needs_more() -> None:
    call = compiled(nets.Convolutions(), Backend(1000, 0))
    with pytest.raises(
        Exception, match=r"no plan fits in 1,000 bytes: .* is the least, for"
    ) as error:
        call(images()[0])
    assert isinstance(error.value.__cause__ or error.value, (TierlineError, RuntimeError))
