from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import torch
from torch import nn

from tierline_client import Client, ClientError, ErrorCode
from tierline_torch.arena import Arena
from tierline_torch.contents import Contents, arrange
from tierline_torch.selection import Layer, Selection
from tierline_torch.weights import collect

EXTENT_BYTES = 4096
TIMEOUT_S = 120.0


class Keeper:
    """An agent as an arena sees it: keeps what is stored, or refuses an extent.

    No store returns before as many are under way as an arena can have, or the last one came.
    """

    def __init__(self, extents: int, at_once: int, refused: int | None = None) -> None:
        self.stored: dict[int, bytes] = {}
        self.under_way = 0
        self.most = 0
        self.sealed = False
        self._extents = extents
        self._at_once = at_once
        self._refused = refused
        self._begun = 0
        self._changed = threading.Condition()

    def reserve(self, *_: Any) -> int:
        return 0

    def store(self, _arena: int, extent: int, data: memoryview) -> None:
        with self._changed:
            self._begun += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self._changed.notify_all()
            enough = self._changed.wait_for(
                lambda: self.most == self._at_once or self._begun == self._extents, TIMEOUT_S
            )
            assert enough
            self.under_way -= 1
            if extent == self._refused:
                raise ClientError(ErrorCode.RETRY, "the connection broke")
            self.stored[extent] = bytes(data)

    def seal(self, *_: Any) -> None:
        self.sealed = True


@pytest.fixture
def contents() -> Contents:
    torch.manual_seed(3)
    model = nn.ModuleList([nn.Linear(64, 67) for _ in range(3)])
    weights = collect(model.named_modules(), "cpu")
    layers = tuple(Layer(id(one), (2 * at, 2 * at + 1)) for at, one in enumerate(model))
    return arrange(weights, Selection(layers=layers, pinned=()), {})


def test_several_extents_are_stored_at_once_each_with_its_own_bytes(contents: Contents) -> None:
    keeper = Keeper(extents=13, at_once=3)
    Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu").load()
    assert keeper.sealed
    assert (keeper.most, keeper.under_way) == (3, 0)
    ((_, whole),) = contents.pieces(1 << 20)
    assert b"".join(keeper.stored[extent] for extent in range(13)) == bytes(whole)


def test_a_refused_extent_ends_the_load_when_no_other_is_under_way(contents: Contents) -> None:
    keeper = Keeper(extents=13, at_once=3, refused=1)
    with pytest.raises(ClientError, match="the connection broke"):
        Arena(cast("Client", keeper), 0, contents, EXTENT_BYTES, "cpu").load()
    assert keeper.under_way == 0
    assert not keeper.sealed
    assert len(keeper.stored) < 13
