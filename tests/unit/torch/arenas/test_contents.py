from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from tierline_torch.arenas.contents import Contents, arrange, shown
from tierline_torch.arenas.selection import Layer, Pinned, Selection
from tierline_torch.tensors.weights import collect


@pytest.fixture
def contents() -> Contents:
    torch.manual_seed(3)
    model = nn.ModuleList([nn.Linear(7, 5), nn.Linear(33, 41), nn.Linear(2, 3)])
    weights = collect(model.named_modules(), "cpu")
    ids = [id(one) for one in model]
    selection = Selection(
        layers=(Layer(ids[1], (2, 3)), Layer(ids[0], (1,))),
        pinned=(Pinned("a reason", (0,)), Pinned("b reason", (4, 5))),
    )
    return arrange(weights, selection, {ids[0]: "zero", ids[1]: "one"})


def test_pinned_weights_come_first_then_layers(contents: Contents) -> None:
    told = [(one.name, one.size_bytes, one.pinned) for one in contents.entries]
    assert told == [
        ("pinned: a reason", 192, True),
        ("pinned: b reason", 128, True),
        ("one", 5440 + 192, False),
        ("zero", 64, False),
    ]
    assert contents.pinned_bytes == 320
    assert contents.size_bytes == 320 + 5632 + 64
    assert sorted(contents.gates.values()) == [0, 1]
    assert all(offset % 64 == 0 for _, offset in contents.placed)


def test_each_layer_knows_its_weights(contents: Contents) -> None:
    assert contents.layers == [[3, 4], [5]]
    names = [[contents.placed[at][0].name for at in layer] for layer in contents.layers]
    assert names == [["1.weight", "1.bias"], ["0.bias"]]


@pytest.mark.parametrize("extent_bytes", [64, 100, 512, 4096, 1 << 20])
def test_layers_lie_where_the_layout_says(contents: Contents, extent_bytes: int) -> None:
    layout = contents.layout(extent_bytes)
    assert layout.arena_bytes == (contents.size_bytes,)
    assert layout.arena_pinned_bytes == (contents.pinned_bytes,)
    offsets = [offset for _, offset in contents.placed]
    assert layout.layer_offset == (offsets[3], offsets[5])


@pytest.mark.parametrize("piece_bytes", [64, 100, 512, 4096, 1 << 20])
def test_pieces_hold_every_weight_at_its_place(contents: Contents, piece_bytes: int) -> None:
    pieces = [(index, bytes(piece)) for index, piece in contents.pieces(piece_bytes)]
    assert [index for index, _ in pieces] == list(range(len(pieces)))
    assert {len(piece) for _, piece in pieces[:-1]} <= {piece_bytes}
    whole = b"".join(piece for _, piece in pieces)
    assert len(whole) == contents.size_bytes
    expected = bytearray(contents.size_bytes)
    for weight, offset in contents.placed:
        expected[offset : offset + weight.size_bytes] = bytes(weight.content().tolist())
    assert whole == bytes(expected)


def test_the_digest_is_of_the_arenas_bytes(contents: Contents) -> None:
    hasher = hashlib.sha256()
    contents.digest_into(hasher)
    ((_, whole),) = contents.pieces(1 << 20)
    assert hasher.digest() == hashlib.sha256(bytes(whole)).digest()


def test_a_name_that_is_too_long_for_a_profile_is_told_from_others() -> None:
    """Of a module within hundreds of others."""
    names = ["child." * depth + "linear" for depth in (1, 41, 42, 240, 241)]
    told = [shown(name) for name in names]
    assert told[:2] == names[:2]
    assert len(set(told)) == len(told)
    assert max(map(len, told)) <= 253
    assert told[3].startswith("child.child.")
    assert told[3].endswith("...1446..." + names[3][-110:])
