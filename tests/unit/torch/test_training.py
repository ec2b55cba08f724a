"""What is a step, where it can give the device away, and when it does without being asked."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tierline_torch.training import slices
from tierline_torch.training.gates import gate_graph
from tierline_torch.training.loop import Loop
from tierline_torch.training.state import Keeps
from tierline_torch.training.steps import Steps

_TIMEOUT_S = 60.0


class Recorded:
    """A turn that notes what becomes of it."""

    def __init__(self) -> None:
        self.held = False
        self.told: list[str] = []
        self.given_back = threading.Event()
        self.asked = False
        """Whether others wait at every gate."""
        self.interrupt: Callable[[], object] = bool
        """Called in the middle of each call, as a handler of a signal may be."""

    def begins(self) -> None:
        self.told.append("begins")

    def take(self) -> None:
        assert not self.held
        self.interrupt()
        assert not self.held
        self.held = True
        self.told.append("takes")

    def give_back(self) -> None:
        if self.held:
            self.held = False
            self.told.append("gives back")
            self.given_back.set()

    def pass_gate(self) -> None:
        assert self.held
        self.interrupt()
        assert self.held
        self.told.append("gate")
        if self.asked:
            self.give_back()
            self.take()

    def ends(self, number: int, keeps: Keeps, rest: Callable[[], None]) -> None:
        assert keeps.digest(number, rest)
        self.interrupt()
        self.give_back()
        self.told.append(f"ends {number}")

    def gates(self) -> int:
        return self.told.count("gate") + self.told.count("takes")


class Training:
    """A loop of this process, with gates for as long as a test runs."""

    def __init__(self, most: int | None = None) -> None:
        self.turn = Recorded()
        self.said: list[str] = []
        self.steps = Steps(self.turn, self.said.append, most)
        self._loop = Loop()
        self._loop.take_over(self.steps)

    def call(self, module: nn.Module, *given: Any) -> Any:
        return self._loop.outermost(module, given, {})

    def close(self) -> None:
        self._loop.leave()

    def holds(self) -> bool:
        return self.turn.held

    @property
    def ended(self) -> list[str]:
        return [one for one in self.turn.told if one.startswith("ends")]


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.close()


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(8, 4)
    )


def _given() -> torch.Tensor:
    return torch.ones(4, 8) * torch.arange(4)[:, None]


def test_a_step_is_from_the_first_forward_to_the_end_of_the_optimizer(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training.call(model, _given()).sum().backward()
    assert training.holds()
    optimizer.step()
    assert not training.holds()
    assert training.turn.told[0] == "begins"
    assert training.turn.told[-2:] == ["gives back", "ends 1"]
    assert training.turn.gates() > 2 * len(model)


def test_a_handler_that_trains_in_the_middle_of_a_gate_is_a_part_of_it(training: Training) -> None:
    model, other = _model(), nn.Linear(8, 4)
    optimizer, others = (torch.optim.SGD(one.parameters(), 0.1) for one in (model, other))
    handled = []

    def handle() -> None:
        with torch.enable_grad():
            training.call(other, _given()).sum().backward()
        others.step()
        others.zero_grad()
        handled.append(len(training.turn.told))

    training.turn.interrupt = handle
    for _ in range(2):
        training.call(model, _given()).sum().backward()
        optimizer.step()
        assert not training.holds()
    assert len(handled) > 4 * len(model)
    assert training.ended == ["ends 1", "ends 2"]


def test_gradients_that_are_accumulated_are_one_step(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        training.call(model, _given()).sum().backward()
    optimizer.step()
    assert training.ended == ["ends 1"]
    assert training.turn.told.count("begins") == 1


def test_two_models_of_one_backward_are_one_step(training: Training) -> None:
    one, other = _model(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
    training.call(other, training.call(one, _given())).sum().backward()
    optimizer.step()
    assert training.ended == ["ends 1"]


def test_two_optimizers_after_one_backward_are_one_step(training: Training) -> None:
    model = _model()
    halves = [
        torch.optim.SGD(model[0].parameters(), 0.1),
        torch.optim.Adam(model[4].parameters()),
    ]
    for _ in range(2):
        training.call(model, _given()).sum().backward()
        for one in halves:
            one.step()
        assert not training.holds()
    assert training.ended == ["ends 1", "ends 2"]


class _RaisingError(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ArithmeticError(f"not a number: {closure}")


def test_an_optimizer_that_raises_is_over_for_the_next_one(training: Training) -> None:
    model = nn.Linear(4, 4)
    failing = _RaisingError(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    training.call(model, torch.ones(2, 4)).sum().backward()
    with pytest.raises(ArithmeticError):
        failing.step()
    assert training.turn.given_back.wait(_TIMEOUT_S)
    for _ in range(2):
        training.call(model, torch.ones(2, 4)).sum().backward()
        other.step()
    assert training.steps.number == 2
    assert not training.turn.held


def test_a_backward_that_raises_gives_the_device_back(training: Training) -> None:
    model = nn.Linear(4, 4)
    outputs = training.call(model, torch.ones(2, 4))

    def fail(_gradient: torch.Tensor) -> None:
        raise ArithmeticError("not a number")

    outputs.register_hook(fail)
    with pytest.raises(ArithmeticError):
        outputs.sum().backward()
    training.turn.given_back.clear()
    held = training.turn.held
    begun = time.monotonic()
    while training.turn.held and time.monotonic() < begun + _TIMEOUT_S:
        pass  # it computes, and nothing of it is the step's
    assert held
    assert not training.turn.held


def test_a_closure_runs_inside_the_step(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = training.call(model, _given()).square().sum()
        loss.backward()
        assert training.holds()
        return loss

    optimizer.step(closure)
    assert training.ended == ["ends 1"]
    assert not training.holds()


def test_what_is_computed_once_more_in_a_backward_is_a_part_of_it(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            seen: torch.Tensor = checkpoint(self.inner, given, use_reentrant=False)
            return seen

    training.call(Again(), _given()).sum().backward()
    optimizer.step()
    assert training.ended == ["ends 1"]


def test_validation_is_a_turn_by_itself_and_no_step(training: Training) -> None:
    model = _model()
    with torch.no_grad():
        training.call(model, _given())
    assert not training.holds()
    assert not training.ended
    assert "begins" not in training.turn.told


def test_without_an_optimizer_of_pytorch_the_next_forward_ends_a_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Steps, "_has_optimizer", lambda _: False)  # others of this process are made
    model = _model()
    for _ in range(3):
        training.call(model, _given()).sum().backward()
        with torch.no_grad():
            for one in model.parameters():
                assert one.grad is not None
                one.sub_(0.1 * one.grad)
                one.grad = None
    assert training.ended == ["ends 1", "ends 2"]
    assert len([one for one in training.said if "no optimizer of PyTorch's" in one]) == 2


def test_a_forward_whose_backward_never_comes_gives_the_device_back(training: Training) -> None:
    training.call(_model(), _given())
    assert training.turn.given_back.wait(_TIMEOUT_S)
    assert not training.ended


def test_a_program_that_sleeps_in_a_forward_gives_the_device_back(training: Training) -> None:
    class Waits(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            assert training.turn.given_back.wait(_TIMEOUT_S)
            return super().forward(given)

    training.call(nn.Sequential(Waits(8, 8), nn.Linear(8, 8)), _given())
    assert training.turn.told.count("takes") >= 2


def test_a_model_that_only_runs_forwards_is_told(training: Training) -> None:
    model = _model()
    for _ in range(12):
        training.call(model, _given())
    assert any("ran 12 forwards with gradients and made no step" in one for one in training.said)


def test_after_so_many_steps_the_program_ends() -> None:
    training = Training(most=2)
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train() -> None:
        while True:
            training.call(model, _given()).sum().backward()
            optimizer.step()

    try:
        with pytest.raises(SystemExit) as ended:
            train()
    finally:
        training.close()
    assert ended.value.code == 0
    assert training.ended == ["ends 1", "ends 2"]


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD),
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "Adam": partial(torch.optim.Adam),
    "Adam, amsgrad": partial(torch.optim.Adam, amsgrad=True, weight_decay=0.1),
    "AdamW": partial(torch.optim.AdamW),
    "AdamW, foreach": partial(torch.optim.AdamW, foreach=True),
    "AdamW, fused": partial(torch.optim.AdamW, fused=True),
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "NAdam": partial(torch.optim.NAdam),
    "Adagrad": partial(torch.optim.Adagrad),
    "Adamax": partial(torch.optim.Adamax),
}
_WHOLE = {"AdamW, foreach", "AdamW, fused", "Adamax"}


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_an_optimizer_that_can_be_sliced_has_gates_inside(
    training: Training, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_SLICE_BYTES", 1)
    model = _model()
    optimizer = _OPTIMIZERS[name](model.parameters(), lr=0.05)
    model(_given()).sum().backward()
    before = training.turn.gates()
    optimizer.step()
    inside = training.turn.gates() - before - 2  # before it, and before the digest
    assert inside == (0 if name in _WHOLE else len(list(model.parameters())) - 1)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_weights_are_those_of_a_loop_without_gates(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_SLICE_BYTES", 100)
    kind = _OPTIMIZERS[name]

    def trained(call: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        model = _model()
        optimizer = kind(model.parameters(), lr=0.05)
        for _ in range(4):
            call(model, _given()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [one.detach().clone() for one in model.state_dict().values()]

    plain = trained(lambda model, given: model(given))
    training = Training()
    training.turn.asked = True
    try:
        gated = trained(training.call)
    finally:
        training.close()
    assert all(map(torch.equal, plain, gated))
    assert len(training.ended) == 4


def test_a_graph_that_is_kept_has_one_gate_at_each_node(training: Training) -> None:
    model = _model()
    output = training.call(model, _given())
    gate_graph(output, training.steps)
    before = training.turn.gates()
    output.sum().backward(retain_graph=True)
    once = training.turn.gates() - before
    output.sum().backward()
    assert training.turn.gates() - before == 2 * once


def test_a_forked_child_has_no_turn(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = training.call(model, _given()).sum()
    child = os.fork()
    if not child:
        before = list(training.turn.told)
        training.steps.gate()
        os._exit(int(training.turn.told != before))
    assert os.waitpid(child, 0)[1] == 0
    loss.backward()
    optimizer.step()
    assert training.ended == ["ends 1"]


def test_state_is_counted_once_and_with_all_that_stays() -> None:
    model = nn.Linear(100, 10, bias=False)
    model.register_buffer("seen", torch.zeros(7))
    frozen = nn.Linear(10, 10, bias=False).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    frozen(model(torch.ones(1, 100))).sum().backward()
    optimizer.step()
    keeps = Keeps()
    for one in (model, frozen):
        keeps.see(one)
    keeps.see_optimizer(optimizer)
    # weights, gradients, two moments, the step's number; a buffer; what is frozen
    assert keeps.bytes_now() == (4 * (4 * 1000 + 1 + 7 + 100), 4000)


def test_gates_of_an_optimizer_are_its_begin_and_its_end(training: Training) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(_given()).sum().backward()  # not through the loop
    before = len(training.turn.told)
    optimizer.step()
    assert training.turn.told[before:][:2] == ["begins", "takes"]
    assert not training.holds()
