from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.unit.torch.keeper import EXTENT_BYTES, Keeper
from torch import nn

from tierline_client import Client, ClientError
from tierline_torch.arenas import arena as subject
from tierline_torch.arenas.arena import SEEN_SINCE, WRITTEN_SINCE, Arena
from tierline_torch.arenas.contents import Contents, arrange
from tierline_torch.arenas.origins import NO_MAPPINGS
from tierline_torch.arenas.selection import Layer, Selection
from tierline_torch.tensors.aliases import seen_by_others, uses
from tierline_torch.tensors.weights import collect


@pytest.fixture
def model() -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList([nn.Linear(64, 67) for _ in range(3)])


@pytest.fixture
def contents(model: nn.ModuleList) -> Contents:
    weights = collect(model.named_modules(), "cpu")
    assert not seen_by_others(weights)
    layers = tuple(Layer(id(one), (2 * at, 2 * at + 1)) for at, one in enumerate(model))
    return arrange(weights, Selection(layers=layers, pinned=()), {})


def test_several_extents_are_stored_at_once_each_with_its_own_bytes(contents: Contents) -> None:
    keeper = Keeper(extents=13, at_once=3)
    Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu").load()
    assert keeper.sealed
    assert (keeper.most, keeper.under_way) == (3, 0)
    ((_, whole),) = contents.pieces(1 << 20)
    assert b"".join(keeper.stored[extent] for extent in range(13)) == bytes(whole)


def test_a_storage_that_moves_whole_keeps_the_distances_of_its_parts(model: nn.ModuleList) -> None:
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    parts = flat.split([one.numel() for one in model.parameters()])
    for one, part in zip(model.parameters(), parts, strict=True):
        one.data = part.view_as(one)
    del one, part, parts
    before = [
        (one.data_ptr() - flat.data_ptr(), one.detach().clone()) for one in model.parameters()
    ]
    size_bytes = flat.nbytes
    del flat
    (weight,) = collect(model.named_modules(), "cpu", whole=True)
    assert not seen_by_others([weight])
    contents = arrange([weight], Selection(layers=(Layer(id(model), (0,)),), pinned=()), {})
    arena = Arena(cast("Client", Keeper(extents=13, at_once=3)), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    assert not arena.move(lambda _: None)
    storage = model[0].get_parameter("weight").untyped_storage()
    assert (storage.data_ptr(), storage.nbytes()) == (arena.base, size_bytes)
    for one, (distance, value) in zip(model.parameters(), before, strict=True):
        assert one.data_ptr() - storage.data_ptr() == distance
        assert torch.equal(one, value)


def test_a_refused_extent_ends_the_load_when_no_other_is_under_way(contents: Contents) -> None:
    keeper = Keeper(extents=13, at_once=3, refused=1)
    with pytest.raises(ClientError, match="the connection broke"):
        Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu").load()
    assert keeper.under_way == 0
    assert not keeper.sealed
    assert len(keeper.stored) < 13


def _scaled(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(1.5)


def _through_data(weight: nn.Parameter) -> None:
    weight.data.mul_(1.5)


def _through_numpy(weight: nn.Parameter) -> None:
    array = weight.detach().numpy()
    array *= 1.5


def _given_memory(weight: nn.Parameter) -> None:
    weight.data = weight.data * 1.5


def _swapped(weight: nn.Parameter) -> None:
    torch.utils.swap_tensors(weight, nn.Parameter(weight.detach() * 1.5))


WRITES = (_scaled, _through_data, _through_numpy)
EXCHANGES = (_given_memory, _swapped)


@pytest.mark.parametrize("change", [*WRITES, *EXCHANGES])
def test_what_another_thread_does_to_a_weight_while_it_is_loaded_is_not_lost(
    change: Callable[[nn.Parameter], None], model: nn.ModuleList, contents: Contents
) -> None:
    before = [one.detach().clone() for one in model.parameters()]
    keeper = Keeper(extents=13, at_once=3)
    changed = model[1].get_parameter("weight")
    keeper.meanwhile = lambda: change(changed)
    arena = Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    stays = arena.move(lambda _: None)
    for one, value in zip(model.parameters(), before, strict=True):
        assert one.equal(value * 1.5 if one is changed else value)
    reasons = {weight.name: why for weight, why in stays.items()}
    assert reasons == ({"1.weight": WRITTEN_SINCE} if change in WRITES else {})
    low, high = keeper.memory.data_ptr(), keeper.memory.data_ptr() + keeper.memory.nbytes
    moved = [low <= one.data_ptr() < high for one in model.parameters()]
    assert moved == [one is not changed for one in model.parameters()]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_exchange_by_another_thread_in_the_middle_of_a_move_is_not_lost(
    exchange: Callable[[nn.Parameter], None],
    model: nn.ModuleList,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [one.detach().clone() for one in model.parameters()]
    keeper = Keeper(extents=13, at_once=3)
    arena = Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    changed, viewed = model[1].get_parameter("weight"), subject._view

    def view(storage: Any, weight: Any, *rest: Any) -> torch.Tensor:
        if weight.name == "1.weight":
            with torch.inference_mode(False), torch.no_grad():
                exchange(changed)
        return viewed(storage, weight, *rest)

    monkeypatch.setattr(subject, "_view", view)
    arena.move(lambda _: None)
    for one, value in zip(model.parameters(), before, strict=True):
        assert one.equal(value * 1.5 if one is changed else value)


def test_a_view_that_another_thread_made_while_a_weight_was_loaded_sees_later_writes(
    model: nn.ModuleList, contents: Contents
) -> None:
    keeper = Keeper(extents=13, at_once=3)
    changed, views = model[1].get_parameter("weight"), []
    keeper.meanwhile = lambda: views.append(changed.detach())
    arena = Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    assert list(arena.move(lambda _: None).values()) == [SEEN_SINCE]
    _scaled(changed)
    assert views[0].equal(changed)


@pytest.mark.parametrize("change", [*WRITES, *EXCHANGES])
def test_what_another_thread_does_while_a_moved_weight_is_looked_at_is_not_lost(
    change: Callable[[nn.Parameter], None],
    model: nn.ModuleList,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has to go back, as there is a view of its old memory."""
    before = [one.detach().clone() for one in model.parameters()]
    keeper = Keeper(extents=13, at_once=3)
    changed, views = model[1].get_parameter("weight"), []
    keeper.meanwhile = lambda: views.append(changed.detach())
    arena = Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    changes = [change]

    def look(storage: torch.UntypedStorage) -> int:
        while changes:
            changes.pop()(changed)
        return uses(storage)

    monkeypatch.setattr(subject, "uses", look)
    assert list(arena.move(lambda _: None).values()) == [SEEN_SINCE]
    for one, value in zip(model.parameters(), before, strict=True):
        assert one.equal(value * 1.5 if one is changed else value)
    assert views[0].equal(before[2] * 1.5 if change in WRITES else before[2])


def test_weights_whose_old_memory_cannot_be_given_up_stay_there(
    model: nn.ModuleList, contents: Contents
) -> None:
    keeper = Keeper(extents=13, at_once=3)
    keeper.mappings = 2
    arena = Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu")
    arena.load()
    places = [one.data_ptr() for one in model.parameters()]
    stays = arena.move(lambda _: None)
    assert set(stays.values()) == {NO_MAPPINGS}
    stayed = [one.data_ptr() == at for one, at in zip(model.parameters(), places, strict=True)]
    assert stayed.count(False) == len(arena.origins) == 2
    assert len(stays) == stayed.count(True)
