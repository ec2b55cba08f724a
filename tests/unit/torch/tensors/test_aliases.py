"""What else sees a weight's memory."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.unit.torch.keeper import Keeper
from torch import nn

from tierline_client import Client
from tierline_torch.arenas.arena import Arena
from tierline_torch.arenas.contents import arrange
from tierline_torch.arenas.selection import Layer, Selection
from tierline_torch.tensors.aliases import seen_by_others
from tierline_torch.tensors.weights import collect


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


KEPT: dict[str, Callable[[nn.Linear], Any]] = {
    "data": lambda model: model.weight.data,
    "detached": lambda model: model.weight.detach(),
    "row": lambda model: model.weight.detach()[3],
    "transposed": lambda model: model.weight.t(),
    "array": lambda model: model.weight.detach().numpy(),
    "memoryview": lambda model: memoryview(model.weight.detach().numpy().data),
    "state": lambda model: model.state_dict(),
    "capsule": lambda model: model.weight.detach().__dlpack__(),
    "buffer": lambda model: model.register_buffer("row", model.weight.detach()[0]),
    "shared": lambda model: model.share_memory(),
}


def _of_array(model: nn.Linear) -> Any:
    array = np.zeros((8, 8), np.float32)
    model.weight.data = torch.from_numpy(array)
    return array


def _of_part_of_array(model: nn.Linear) -> Any:
    array = np.zeros((32, 8), np.float32)
    model.weight.data = torch.from_numpy(array[8:16])
    return array


def _of_strided_array(model: nn.Linear) -> Any:
    array = np.zeros((8, 16), np.float32)
    model.weight.data = torch.from_numpy(array)[:, :8].as_strided((8, 8), (16, 1))
    return array[::2]


def _of_bytearray(model: nn.Linear) -> Any:
    memory = bytearray(256)
    model.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(8, 8)
    return memory


def _of_ctypes(model: nn.Linear) -> Any:
    memory = (ctypes.c_float * 64)()
    model.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(8, 8)
    return memory


def _of_mapping(model: nn.Linear) -> Any:
    memory = mmap.mmap(-1, 4096)
    model.weight.data = torch.frombuffer(memory, dtype=torch.float32, count=64).view(8, 8)
    return memory


def _of_flat_buffer(model: nn.Linear) -> Any:
    flat = torch.zeros(72)
    model.weight.data, model.bias.data = flat[:64].view(8, 8), flat[64:]
    return flat


FOREIGN = (
    *(_of_array, _of_part_of_array, _of_strided_array, _of_bytearray, _of_ctypes, _of_mapping),
    _of_flat_buffer,
)


def seen(model: nn.Module) -> set[str]:
    weights = collect(model.named_modules(), "cpu")
    return {weights[index].name for index in seen_by_others(weights)}


@pytest.mark.parametrize("kept", KEPT)
def test_a_weight_that_something_else_views_is_seen(kept: str) -> None:
    model = nn.Linear(8, 8)
    held = KEPT[kept](model)
    assert "weight" in seen(model)
    if kept not in {"buffer", "shared"}:
        del held
        gc.collect()
        assert seen(model) == set()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("frozen", [False, True], ids=["plain", "frozen"])
@pytest.mark.parametrize("make", FOREIGN)
def test_memory_of_others_is_seen_as_long_as_they_have_it(
    make: Callable[[nn.Linear], Any], *, frozen: bool
) -> None:
    """Also where the collector passes over it: in a server that forks, in a periodic loop."""
    model = nn.Linear(8, 8)
    held = [make(model)]  # in a list, in a frame
    if frozen:
        gc.freeze()
    assert "weight" in seen(model)
    held.clear()
    gc.collect()
    # The tensor itself holds those that the collector knows: nothing tells whether others do.
    known = make in {_of_ctypes, _of_mapping, _of_strided_array}  # the last: parts of a storage
    parts = {"weight", "bias"} if make is _of_flat_buffer else set()
    assert seen(model) == parts | ({"weight"} if known else set())


class _Output:
    """Something that a program looks at to see when it dies."""


def test_what_a_search_finds_lives_no_longer_for_it() -> None:
    model = nn.Linear(8, 8)
    array = _of_array(model)
    in_a_list, in_a_variable = [_Output()], _Output()
    alive = weakref.ref(in_a_list[0]), weakref.ref(in_a_variable)
    gc.disable()
    try:
        assert "weight" in seen(model)
        in_a_list.clear()
        in_a_variable = None  # type: ignore[assignment]  # its name goes
        assert [one() for one in alive] == [None, None]
    finally:
        gc.enable()
    del array


def test_what_a_program_asked_of_its_own_frame_stays() -> None:
    model = nn.Linear(8, 8)
    array = _of_array(model)
    mine = locals()
    asked = dict(mine)
    assert "weight" in seen(model)
    assert mine.items() >= asked.items()
    del array


def _tied(model: nn.Sequential) -> Any:
    model[1].weight = model[0].weight


def _twice(model: nn.Sequential) -> Any:
    model[1].weight = nn.Parameter(model[0].get_parameter("weight"))


def _packed(model: nn.Sequential) -> Any:
    flat = torch.cat([one.data.reshape(-1) for one in model.parameters()])
    place = 0
    for one in model.parameters():
        one.data = flat[place : place + one.numel()].view_as(one)
        place += one.numel()


def _loaded(model: nn.Sequential) -> Any:
    model.load_state_dict(copy.deepcopy(model).state_dict(), assign=True)


def _optimised(model: nn.Sequential) -> Any:
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimiser.step()
    return optimiser


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        *(_tied, _twice, _loaded, _optimised, nn.Module.bfloat16, copy.deepcopy),
        lambda model: list(model.parameters()),
        torch.jit.script,
        lambda model: {name: one.clone() for name, one in model.state_dict().items()},
        torch.optim.swa_utils.AveragedModel,
    ],
)
def test_what_is_the_models_own_is_not_seen(change: Callable[[nn.Sequential], Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    held = change(model)
    assert seen(model) == set()
    del held


def test_parts_of_one_storage_stay_together() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    _packed(model)
    assert seen(model) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_weight_that_got_a_view_while_it_was_loaded_is_not_moved() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    weights = collect(model.named_modules(), "cpu")
    assert not seen_by_others(weights)
    chosen = weights[1:]
    layer = Layer(id(model), tuple(range(len(chosen))))
    contents = arrange(chosen, Selection((layer,), ()), {})
    memory = torch.zeros(contents.size_bytes, dtype=torch.uint8)
    view = model[1].get_parameter("weight").data
    arena = Arena(cast("Client", Keeper(1, 1)), 0, contents, 4096, "cpu")
    arena.base = memory.data_ptr()
    places = [weight.tensors[0].data_ptr() for weight in chosen]
    stays = {weight.name for weight in arena.move(lambda _: None)}
    moved = [
        weight.tensors[0].data_ptr() != place for weight, place in zip(chosen, places, strict=True)
    ]
    assert "1.weight" in stays
    assert moved == [weight.name not in stays for weight in chosen]
    assert any(moved)
    view.fill_(3)
    assert model[1].get_parameter("weight").max() == 3


def test_a_loaded_file_is_nobodys(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    torch.save(model.state_dict(), tmp_path / "file")
    model.load_state_dict(torch.load(tmp_path / "file", mmap=True), assign=True)
    gc.collect()
    assert seen(model) == set()


def test_a_weight_that_was_exchanged_while_it_was_loaded_keeps_its_new_memory() -> None:
    model = nn.Linear(8, 8)
    weights = collect(model.named_modules(), "cpu")
    assert not seen_by_others(weights)
    contents = arrange(weights, Selection((Layer(id(model), (0, 1)),), ()), {})
    memory = torch.zeros(contents.size_bytes, dtype=torch.uint8)
    arena = Arena(cast("Client", Keeper(1, 1)), 0, contents, 4096, "cpu")
    arena.base = memory.data_ptr()
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(8, 8)))
    arena.move(lambda _: None)
    assert model.weight.eq(1).all()
    assert model.bias.eq(0).all()
