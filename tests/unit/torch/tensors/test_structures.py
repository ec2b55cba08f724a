from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.differences import difference

from tierline_torch.tensors.structures import MAX_LEAVES, digest, walk

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    extra: Any = None


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


NAN = torch.tensor([1.0, float("nan")])

ALIKE = [
    pytest.param(NAN, NAN.clone(), id="the same NaN"),
    pytest.param(torch.ones(2, 3), torch.ones(3, 2).t(), id="other strides"),
    pytest.param({"a": [torch.ones(1), 2, "x"]}, {"a": [torch.ones(1), 2, "x"]}, id="nested"),
    pytest.param(Output(torch.ones(2)), Output(torch.ones(2)), id="dataclass"),
    pytest.param(Plain({"k": torch.ones(2)}), Plain({"k": torch.ones(2)}), id="object"),
    pytest.param(np.arange(3), np.arange(3), id="array"),
    pytest.param(torch.ones(3).bfloat16(), torch.ones(3).bfloat16(), id="bfloat16"),
    pytest.param(torch.tensor(True), torch.tensor(True), id="scalar tensor"),
    pytest.param(torch.empty(0, 3), torch.empty(0, 3), id="empty"),
    pytest.param(lambda: 1, lambda: 2, id="functions count by type"),
    pytest.param(torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), id="sparse"),
    pytest.param(torch.ones(2) * 1j, (torch.ones(2) * -1j).conj(), id="lazy conjugate"),
]

DIFFERENT = [
    pytest.param(torch.tensor(0.0), torch.tensor(-0.0), "differs in 1 bytes", id="signed zero"),
    pytest.param(torch.ones(2), torch.ones(2).double(), "another dtype or shape", id="dtype"),
    pytest.param(torch.ones(4), torch.ones(2, 2), "another dtype or shape", id="shape"),
    pytest.param((torch.ones(1),), [torch.ones(1)], "differs", id="container"),
    pytest.param({"a": 1}, {"b": 1}, "another structure", id="key"),
    pytest.param([1, 2], [1, 2, 3], "another structure", id="length"),
    pytest.param(Pair(1, 2), Pair(1, 3), "output[1] differs", id="named tuple"),
    pytest.param(Output(NAN), Output(torch.ones(2)), "output.logits differs", id="field"),
    pytest.param(1, 1.0, "another structure", id="type of a number"),
    pytest.param(OrderedDict(a=1), {"a": 1}, "differs", id="type of a mapping"),
]


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_the_same_bits(first: Any, second: Any) -> None:
    assert difference(first, second) is None
    assert digest(first) == digest(second)


@pytest.mark.parametrize(("first", "second", "told"), DIFFERENT)
def test_other_bits(first: Any, second: Any, told: str) -> None:
    where = difference(first, second)
    assert where is not None
    assert told in where
    assert digest(first) != digest(second)


def test_inputs_and_their_split_matter() -> None:
    assert digest((1, 2), {}) != digest((1,), {"x": 2})


def test_loops_and_endless_structures_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest(loop) == digest(loop)
    assert len(list(walk(list(range(2 * MAX_LEAVES))))) == MAX_LEAVES + 1
    assert len(list(walk(deque([1])))) == 1
