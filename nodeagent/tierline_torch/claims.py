"""Which tensors of weights a site has laid out, told by the memory that they are in.

PyTorch refuses to exchange a tensor that has a weak reference (`torch.utils.swap_tensors`), and an
exchanged one is the same object with other memory. So a claim is on a place in a storage, and ends
with the storage.

Invariant: nothing here refers to a tensor.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch


class Claims:
    """Of one process. Takes only tensors that `weights.movable` holds for."""

    def __init__(self) -> None:
        self._storages: WeakValueDictionary[tuple[int, int], torch.UntypedStorage]
        self._storages = WeakValueDictionary()
        """By its identity, which may come again once it is gone, and the first byte."""

    def claim(self, tensor: torch.Tensor) -> None:
        """Note that a site has laid out this tensor where it is now."""
        self._storages[_place(tensor)] = tensor.untyped_storage()

    def claimed(self, tensor: torch.Tensor) -> bool:
        """Whether a site has laid out what is there."""
        return self._storages.get(_place(tensor)) is tensor.untyped_storage()


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    first = int(tensor.storage_offset()) * tensor.element_size()
    return tensor.untyped_storage()._cdata, first
