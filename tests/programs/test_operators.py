"""Watched, each operator of PyTorch's own database gives and raises what it does plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any

import pytest
import torch
from tests.programs.seen import seen

from tierline_torch.tensors.operators import OperatorWatch

DATABASE = "torch.testing._internal.common_methods_invocations"
"""It takes longer to import than all other modules of tests; those who collect this one do not."""
SAMPLES = 2
"""Of an operator."""


class Silent(OperatorWatch):
    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Look away."""


def outcome(call: Callable[[], Any]) -> str:
    """What a call gives or raises, bit by bit."""
    torch.default_generator.manual_seed(0)
    try:
        return seen(call())
    except Exception as error:
        return repr(error)


@contextmanager
def filled(name: str) -> Iterator[None]:
    """Where an operator gives memory that it has not written, PyTorch fills it, each time alike."""
    torch.use_deterministic_algorithms("empty" in name or "resize" in name)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
def test_a_watched_operator_gives_the_same(*, grad: bool) -> None:
    different, compared = [], 0
    for entry in import_module(DATABASE).op_db:
        if not entry.supports_dtype(torch.float32, "cpu"):
            continue
        # `sample_inputs` looks through the stack for each sample: most of the time, here.
        samples = entry.sample_inputs_func(
            entry, "cpu", torch.float32, grad and entry.supports_autograd
        )
        for sample in islice(samples, SAMPLES):

            def call(entry: Any = entry, sample: Any = sample) -> Any:
                with torch.set_grad_enabled(grad), filled(entry.name):
                    return entry(sample.input, *sample.args, **sample.kwargs)

            plain = outcome(call)
            if outcome(call) != plain:
                continue  # it changes its input
            with Silent():
                watched = outcome(call)
            compared += 1
            if watched != plain:
                different.append((entry.name, plain[:200], watched[:200]))
    assert different == []
    assert compared > 1000
