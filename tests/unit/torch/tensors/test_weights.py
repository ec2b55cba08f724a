from __future__ import annotations

import torch
from torch import nn

from tierline_torch.tensors.looking import byte_range
from tierline_torch.tensors.weights import (
    OTHER_KIND,
    PACKED_BYTES,
    collect,
    immovable,
    memory_of,
    movable,
)


def modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules())


def test_each_parameter_of_its_own_storage_is_a_weight() -> None:
    weights = collect(modules(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))), "cpu")
    assert [(one.name, one.size_bytes) for one in weights] == [
        ("0.weight", 60),
        ("0.bias", 20),
        ("1.weight", 20),
        ("1.bias", 20),
    ]
    assert [one.slot_bytes for one in weights] == [64] * 4


def test_one_parameter_of_two_modules_is_one_weight_with_two_owners() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    (weight,) = collect([("first", first), ("second", second)], "cpu")
    assert weight.owners == {id(first), id(second)}
    assert weight.tensors == [first.weight] or weight.tensors[0] is first.weight


def test_overlapping_views_are_one_weight_and_neighbours_are_two() -> None:
    flat = torch.arange(30, dtype=torch.float32)
    model = nn.Module()
    model.register_parameter("low", nn.Parameter(flat[0:11]))
    model.register_parameter("high", nn.Parameter(flat[11:20]))
    model.register_parameter("inside", nn.Parameter(flat[12:15]))
    weights = collect([("", model)], "cpu")
    assert [(one.name, one.start, one.end) for one in weights] == [("low", 0, 44), ("high", 44, 80)]
    assert len(weights[1].tensors) == 2


def test_a_transposed_view_keeps_its_bytes() -> None:
    linear = nn.Linear(6, 4, bias=False)
    linear.weight.data = torch.arange(24, dtype=torch.float32).reshape(6, 4).t()
    (weight,) = collect([("", linear)], "cpu")
    content = weight.content().view(torch.float32)
    assert content.tolist() == list(range(24))


def test_what_cannot_be_moved_is_left() -> None:
    lazy = nn.LazyLinear(3)
    sparse = nn.Module()
    sparse.register_parameter("weight", nn.Parameter(torch.eye(3).to_sparse()))
    empty = nn.Module()
    empty.register_parameter("weight", nn.Parameter(torch.empty(0)))
    absent = nn.Linear(2, 2, device="meta")
    assert collect([("", one) for one in (lazy, sparse, empty, absent)], "cpu") == []


def test_overlapping_views_at_broken_offsets_are_left() -> None:
    flat = torch.zeros(64, dtype=torch.uint8)
    model = nn.Module()
    whole = nn.Parameter(flat[2:40], requires_grad=False)
    model.register_parameter("whole", whole)
    model.register_parameter(
        "inside", nn.Parameter(flat[4:12].view(torch.float32), requires_grad=False)
    )
    assert collect([("", model)], "cpu") == []
    assert movable(whole, "cpu")


def test_a_byte_range_covers_a_strided_view() -> None:
    base = torch.zeros(4, 6)
    where = byte_range(base[1:3, 2:4], "cpu")
    assert where is not None
    assert where[1:] == ((6 + 2) * 4, (12 + 3 + 1) * 4)
    assert byte_range(torch.zeros(0), "cpu") is None


def test_a_weight_that_the_program_has_emptied_for_a_while_stays_its_own() -> None:
    model = nn.Linear(8, 8)
    model.weight.untyped_storage().resize_(0)
    assert [one.name for one in collect(model.named_modules(), "cpu")] == ["bias"]
    assert immovable(model.named_modules(), "cpu") == {OTHER_KIND: 256}


def test_the_memory_of_models_counts_each_storage_once_and_none_that_is_elsewhere() -> None:
    first, second = torch.nn.Linear(8, 4, bias=False), torch.nn.Linear(8, 4, bias=False)
    second.weight = first.weight
    third = torch.nn.Linear(16, 4, bias=False)
    model = torch.nn.ModuleList([first, second, third])
    sizes = memory_of(model.modules(), "cpu", lambda _: False)
    assert sum(sizes.values()) == 4 * 8 * 4 + 4 * 16 * 4
    arena = third.weight.untyped_storage()
    sizes = memory_of(model.modules(), "cpu", lambda one: one._cdata == arena._cdata)
    assert sum(sizes.values()) == 4 * 8 * 4
    assert memory_of(model.modules(), "cuda", lambda _: False) == {}


def test_parts_of_one_storage_are_one_weight_where_storages_move_whole() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    flat = torch.arange(40, dtype=torch.float32)
    model[0].weight.data = flat[4:19].view(5, 3)
    model[0].bias.data = flat[19:24]
    (packed, *others) = collect(modules(model), "cpu", whole=True)
    assert (packed.name, packed.start, packed.end) == ("0.weight", 0, 160)
    assert packed.owners == {id(model[0])}
    assert [one is two for one, two in zip(packed.tensors, model[0].parameters(), strict=True)]
    assert [one.name for one in others] == ["1.weight", "1.bias"]


def test_large_buffers_of_packed_numbers_are_weights_and_no_others_are() -> None:
    model = nn.Linear(4, 4, bias=False)
    rows = PACKED_BYTES // 1024
    model.register_buffer("q", torch.zeros(rows, 1024, dtype=torch.int8))
    model.register_buffer("small", torch.zeros(rows - 1, 1024, dtype=torch.uint8))
    model.register_buffer("words", torch.zeros(rows, 256, dtype=torch.int32))
    model.register_buffer("cache", torch.zeros(rows, 1024))
    model.register_buffer("positions", torch.zeros(rows, 1024, dtype=torch.int64))
    model.register_buffer("mask", torch.zeros(rows, 1024, dtype=torch.bool))
    model.register_buffer("absent", None)
    weights = collect([("layer", model)], "cpu")
    assert [one.name for one in weights] == ["layer.weight", "layer.q", "layer.words"]
    assert [one.in_buffers for one in weights] == [False, True, True]
    assert sum(memory_of([model], "cpu", lambda _: False).values()) == 2 * PACKED_BYTES + 64
