"""What a program is told that resizes a weight in an arena, and what becomes of the weight."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from tierline_torch.arenas.resizing import hold
from tierline_torch.arenas.windows import HostWindow
from tierline_torch.errors import TierlineError

_MEMORY = bytearray(range(1, 65))


def _in_an_arena() -> torch.Tensor:
    base = ctypes.addressof(ctypes.c_char.from_buffer(_MEMORY))
    storage = HostWindow(base, 64).storage(0, 64)
    hold(storage)
    view = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (8, 8), (1, 8))
    return torch.nn.Parameter(view, requires_grad=False)


WAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda one: one.resize_(9, 9),
    "sizes": lambda one: one.resize_((9, 9), memory_format=torch.contiguous_format),
    "view": lambda one: one.data.resize_(9, 9),
    "like": lambda one: one.resize_as_(torch.ones(9, 9)),
    "emptied": lambda one: one.untyped_storage().resize_(0),
    "grown": lambda one: one.untyped_storage().resize_(128),
}
KEPT: dict[str, Callable[[torch.Tensor], object]] = {
    "typed": lambda one: one._typed_storage()._resize_(0),
    "kept": lambda one: _emptied(one.untyped_storage()),
}


def _emptied(memory: torch.UntypedStorage) -> None:
    memory.resize_(0)


@pytest.mark.parametrize("way", WAYS)
def test_it_gets_memory_of_its_own_with_the_same_bytes(way: str) -> None:
    weight = _in_an_arena()
    other, before = torch.nn.Parameter(weight.T, False), weight.T.flatten().tolist()
    with torch.inference_mode():
        WAYS[way](weight)
    memory = weight.untyped_storage()
    assert memory.nbytes() in {0, 81, 128}
    assert list(memory)[:64] == (before if memory.nbytes() else [])
    assert other.untyped_storage()._cdata == memory._cdata
    torch.empty(0, dtype=torch.uint8).set_(memory).fill_(0)
    assert bytes(_MEMORY) == bytes(range(1, 65)), "nothing of the arena's was written"


@pytest.mark.parametrize("way", KEPT)
def test_a_storage_that_the_program_keeps_stays_the_weights(way: str) -> None:
    weight = _in_an_arena()
    with torch.inference_mode(), pytest.raises(TierlineError, match=r"Tierline holds .*clone\(\)"):
        KEPT[way](weight)
    assert sorted(weight.flatten().tolist()) == list(range(1, 65))


@pytest.mark.parametrize("way", ["view", "emptied"])
def test_what_cannot_be_moved_is_told_and_stays_as_it_was(way: str) -> None:
    weight = _in_an_arena()
    array = weight.numpy()
    before = weight.clone(), weight.stride()
    with torch.inference_mode(), pytest.raises(TierlineError, match=r"Tierline holds .*clone\(\)"):
        WAYS[way](weight)
    assert torch.equal(weight, before[0])
    assert weight.stride() == before[1]
    weight.data = weight.data.clone()
    WAYS[way](weight)
    assert array[0, 0] == 1


def test_what_needs_no_other_memory_works() -> None:
    weight = _in_an_arena()
    memory = weight.untyped_storage()
    assert memory.resize_(64) is memory
    assert weight.resize_(2, 3).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_other_tensors_are_resized_as_ever() -> None:
    _in_an_arena()
    assert torch.ones(2).resize_(3, 3).shape == (3, 3)
    assert torch.ones(2).untyped_storage().resize_(0).nbytes() == 0
    with pytest.raises(RuntimeError, match="cannot resize variables"):
        torch.nn.Parameter(torch.ones(2)).resize_(3)
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.frombuffer(bytearray(4), dtype=torch.uint8).resize_(9)
