"""Tensors that view a storage, and another one for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from tierline_torch.tensors.looking import byte_range
from tierline_torch.tensors.tracked import of_kinds, tracked


def viewers(storages: Mapping[int, int], kind: str) -> dict[int, list[torch.Tensor]]:
    """All tensors of the program over storages of these identities, on a kind of device.

    With the address of each: an identity is another storage's when the first one is gone.
    """
    found: dict[int, list[torch.Tensor]] = {storage: [] for storage in storages}
    for one in of_kinds(tracked(), (torch.Tensor,)):
        where = byte_range(one, kind)
        if where is None or where[0] not in found:
            continue
        if torch._C.TensorBase.untyped_storage(one).data_ptr() == storages[where[0]]:
            found[where[0]].append(one)
    return found


def let_view(
    tensors: Iterable[torch.Tensor], storage: torch.UntypedStorage, start: int = 0
) -> None:
    """Let them view this storage from byte `start` on, as they view theirs from its first byte.

    `start` is a whole number of elements of each.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for one in tensors:
            with torch.inference_mode(one.is_inference()):
                view = torch.empty(0, dtype=one.dtype, device=storage.device)
                offset = one.storage_offset() + start // one.element_size()
                one.data = view.set_(storage, offset, one.size(), one.stride())
