"""Which tensors view a storage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tierline_torch.arenas.viewers import viewers


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("frozen", [False, True], ids=["plain", "frozen"])
def test_all_that_view_it_are_found(*, frozen: bool) -> None:
    """A server that forks, and a periodic loop, let the collector pass over what is there."""
    model = nn.Linear(8, 8)
    row = model.weight.detach()[2]
    if frozen:
        gc.freeze()
    later = model.weight.detach()
    storage = model.weight.untyped_storage()
    there = {storage._cdata: storage.data_ptr()}
    (found,) = viewers(there, "cpu").values()
    assert {id(one) for one in found} >= {id(model.weight), id(row), id(later)}
    assert all(torch.is_tensor(one) for one in found)
    assert bool(gc.get_freeze_count()) is frozen
