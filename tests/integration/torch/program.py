"""A task's program: runs every model, compares each output with plain PyTorch's, tries odd things.

`python program.py RESULTS`: one JSON line a check, `{"check", "fault"}`, fault null if it held.
Under an observer it ends after the loop: what comes then needs weights that are streamed.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import safetensors.torch
import torch
from tests.differences import difference
from tests.integration.torch.models import Case, Orders, Threaded, make_all
from tests.integration.torch.terms import PAIR, PAIR_DEADLINE_S, RELEASES
from torch import nn

import tierline
from tierline_torch.calls import invoking, plain
from tierline_torch.tensors.weights import Weight


class Program:
    """The models, a plain copy of each that Tierline never sees, and the file of results."""

    def __init__(self, results: TextIO) -> None:
        self._results = results
        self.cases = make_all()
        self.plain = copy.deepcopy(self.cases)
        # A thread of a plain forward is not told to be plain; its part would become a job.
        threaded = self.plain["threaded"].model
        assert isinstance(threaded, Threaded)
        threaded.aside = False

    def report(self, check: str, fault: str | None) -> None:
        self._results.write(json.dumps({"check": check, "fault": fault}) + "\n")
        self._results.flush()

    def attempt(self, check: Callable[[Program], None]) -> None:
        fault = None
        try:
            check(self)
        except Exception:
            fault = traceback.format_exc()
        self.report(check.__name__, fault)

    def expected(self, name: str, index: int) -> Any:
        """What plain PyTorch gives."""
        with torch.inference_mode(), invoking(plain):
            return self.plain[name].run(index)

    def same(self, name: str, index: int) -> None:
        """Run a model, and compare."""
        with torch.inference_mode():
            output = self.cases[name].run(index)
        where = difference(self.expected(name, index), output)
        assert where is None, f"{name}, input {index}: {where}"

    def releases(self) -> None:
        """All models, once a release."""
        faults: dict[str, str] = {}
        ran = 0
        for release in tierline.periodic(jobs=RELEASES):
            ran += not release.warmup
            with torch.inference_mode():
                outputs = {
                    name: case.run(release.index)
                    for name, case in self.cases.items()
                    if name not in PAIR
                }
                with tierline.job(name="pair", deadline=PAIR_DEADLINE_S):
                    outputs |= {name: self.cases[name].run(release.index) for name in PAIR}
            for name, output in outputs.items():
                if name in {"unsteady", "addressed"}:
                    continue
                where = difference(self.expected(name, release.index), output)
                if where is not None:
                    faults.setdefault(name, f"release {release.index}: {where}")
        for name in self.cases:
            self.report(f"outputs of {name}", faults.get(name))
        self.report("releases", None if ran == RELEASES else f"{ran} releases")


@contextmanager
def _ordered(program: Program, order: list[int]) -> Iterator[None]:
    models = [cases["orders"].model for cases in (program.cases, program.plain)]
    for model in models:
        assert isinstance(model, Orders)
        model.order = order
    try:
        yield
    finally:
        for model in models:
            assert isinstance(model, Orders)
            model.order = [0, 1, 2, 3, 4]


def order_changes(program: Program) -> None:
    for order in ([4, 3, 2, 1, 0], [0, 2, 1, 3, 4], [3, 4, 0, 1, 2], [0, 1, 2, 3, 4]):
        with _ordered(program, order):
            program.same("orders", 0)


def layers_are_skipped(program: Program) -> None:
    for order in ([0, 4], [2], [1, 3], [0, 1, 2, 3, 4]):
        with _ordered(program, order):
            program.same("orders", 1)


def layers_are_repeated(program: Program) -> None:
    with _ordered(program, [0, 0, 1, 2, 2, 3, 4, 4]):
        program.same("orders", 0)


def forward_raises(program: Program) -> None:
    with _ordered(program, [0, 1, -3, 4]):
        try:
            program.same("orders", 0)
        except ValueError as error:
            assert str(error) == "a forward that fails"  # noqa: PT017  # not a pytest process
        else:
            raise AssertionError("the exception did not reach the program")
    program.same("orders", 0)
    program.same("bert", 0)


def explicit_job_raises(program: Program) -> None:
    with suppress(KeyError), tierline.job(name="pair"), torch.inference_mode():
        program.cases["half"].run(0)
        raise KeyError("between two forwards")
    program.same("vit", 1)


def threads_take_turns(program: Program) -> None:
    faults: list[str] = []

    def work(name: str) -> None:
        try:
            for index in range(6):
                program.same(name, index)
        except Exception:
            faults.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(one,)) for one in ("bert", "resnet", "bert")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def weights_read_between_jobs(program: Program) -> None:
    for name, case in program.cases.items():
        expected = program.plain[name].model.state_dict()
        where = difference(dict(expected), dict(case.model.state_dict()))
        assert where is None, f"{name}: {where}"
        assert str(next(case.model.parameters())) == str(
            next(program.plain[name].model.parameters())
        )
    program.same("bert", 0)


def weights_are_saved(program: Program) -> None:
    model, reference = program.cases["resnet"].model, program.plain["resnet"].model
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert difference(dict(reference.state_dict()), dict(torch.load(file))) is None
    largest = sum(one.nbytes for one in model.state_dict().values())
    assert file.getbuffer().nbytes < largest * 1.3, "the file holds more than the weights"
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    assert len(safetensors.torch.save(state)) > largest
    with torch.inference_mode(), invoking(plain):
        copied = Case(copy.deepcopy(model), program.cases["resnet"].inputs).run(0)
    assert difference(program.expected("resnet", 0), copied) is None


def layers_called_alone(program: Program) -> None:
    """A module of a managed model as a root of its own: unlearned, its weights fetched."""
    model, reference = program.cases["one_storage"].model, program.plain["one_storage"].model
    assert isinstance(model, nn.Sequential)
    assert isinstance(reference, nn.Sequential)
    x = torch.ones(2, 63)
    with torch.inference_mode():
        output = model[0](x)
        with invoking(plain):
            expected = reference[0](x)
    assert difference(expected, output) is None
    program.same("one_storage", 0)


def weights_are_written(program: Program) -> None:
    """The fault handler gives a written extent to the program for good."""
    for cases in (program.cases, program.plain):
        with torch.no_grad():
            next(cases["from_file"].model.parameters()).mul_(2)
    for index in range(3):
        program.same("from_file", index)


def gradients_are_left_alone(program: Program) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    places = [parameter.data_ptr() for parameter in model.parameters()]
    model.eval()(torch.ones(2, 32)).sum().backward()
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert all(parameter.grad is not None for parameter in model.parameters())


def managed_models_can_be_trained(program: Program) -> None:
    """Their jobs go on; a backward pass reads weights outside every job."""
    gradients = []
    for cases, invoke in ((program.cases, None), (program.plain, plain)):
        case = cases["one_storage"]
        with invoking(invoke):
            output = case.run(0)
        output.sum().backward()
        gradients.append([parameter.grad for parameter in case.model.parameters()])
    assert difference(*gradients) is None


def compiled_models_run(program: Program) -> None:
    model = program.cases["one_storage"].model
    compiled = torch.compile(model, backend="eager")
    x = program.cases["one_storage"].inputs[0][""]
    with torch.inference_mode():
        first, second = compiled(x), compiled(x)
    assert difference(program.expected("one_storage", 0), first) is None
    assert difference(first, second) is None


def originals_are_freed(program: Program) -> None:
    """What is kept of weights is what their models have: a part that ran once, say, has a site."""
    gc.collect()
    theirs = {
        parameter.untyped_storage()._cdata
        for case in program.cases.values()
        for parameter in case.model.parameters()
    }
    kept = [
        one.name
        for one in gc.get_objects()
        if isinstance(one, Weight) and one.storage._cdata not in theirs
    ]
    assert not kept, kept


def dropped_models_give_back_their_arena(program: Program) -> None:
    with torch.inference_mode():
        for size in (100, 120, 140):
            model = nn.Sequential(nn.Linear(64, size), nn.ReLU()).eval()
            expected = copy.deepcopy(model)
            x = torch.ones(1, 64)
            outputs = [model(x) for _ in range(3)]
            with invoking(plain):
                assert all(difference(expected(x), one) is None for one in outputs)
            assert outputs[0].shape == (1, size)
            del model


def dropped_models_leave_their_block(program: Program) -> None:
    """The block goes on without the arena, whatever it runs then."""
    for size in (80, 96):
        model = nn.Sequential(nn.Linear(64, size), nn.ReLU()).eval()
        for _ in range(2):
            with torch.inference_mode(), tierline.job(name="changing"):
                output = model(torch.ones(1, 64))
            with torch.inference_mode(), invoking(plain):
                assert difference(model(torch.ones(1, 64)), output) is None
        del model, output


def _convert(model: nn.Module) -> None:
    model.double()


def _load(model: nn.Module) -> None:
    state = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def _share(model: nn.Module) -> None:
    model.share_memory()


def weights_are_replaced(program: Program) -> None:
    """The arena that no parameter views is given back; its site never runs by it, or its heir."""

    def same(model: nn.Module, expected: nn.Module) -> None:
        x = torch.ones(1, 64, dtype=next(expected.parameters()).dtype)
        with torch.inference_mode():
            for _ in range(3):
                output = model(x)
                with invoking(plain):
                    where = difference(expected(x), output)
                assert where is None, where

    pairs = []
    for replace in (_convert, _load, _share):
        model = nn.Sequential(nn.Linear(64, 90), nn.ReLU(), nn.Linear(90, 64)).eval()
        pairs.append((model, copy.deepcopy(model)))
        same(*pairs[-1])
        for one in pairs[-1]:
            replace(one)
    heir = nn.Sequential(nn.Linear(64, 110), nn.ReLU()).eval()
    pairs.append((heir, copy.deepcopy(heir)))
    for pair in pairs * 2:
        same(*pair)


class _Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 512)
        self.seen = SimpleNamespace(inputs=[])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.inputs.append(x)
        return self.linear(x) + len(self.seen.inputs)


def state_advances_once_a_job(program: Program) -> None:
    """Learning a model runs none of its forwards a second time."""
    model = _Remembers().eval()
    expected = copy.deepcopy(model)
    with torch.inference_mode():
        for _ in range(6):
            output = model(torch.ones(1, 64))
            with invoking(plain):
                where = difference(expected(torch.ones(1, 64)), output)
            assert where is None, where


def children_run_too(program: Program) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model = nn.Linear(8, 8).eval()
            with torch.inference_mode():
                model(torch.ones(1, 8))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    program.same("bert", 1)


CHECKS = (
    order_changes,
    layers_are_skipped,
    layers_are_repeated,
    forward_raises,
    explicit_job_raises,
    threads_take_turns,
    weights_read_between_jobs,
    weights_are_saved,
    layers_called_alone,
    managed_models_can_be_trained,
    compiled_models_run,
    weights_are_written,
    gradients_are_left_alone,
    originals_are_freed,
    dropped_models_give_back_their_arena,
    dropped_models_leave_their_block,
    weights_are_replaced,
    state_advances_once_a_job,
    children_run_too,
)


def main(path: str) -> None:
    torch.set_num_threads(1)
    with Path(path).open("w") as results:
        program = Program(results)
        program.releases()
        if "TIERLINE_SOCKET" in os.environ:
            for check in CHECKS:
                program.attempt(check)


if __name__ == "__main__":
    main(sys.argv[1])
