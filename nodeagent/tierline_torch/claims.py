"""Which parameters a site has laid out, told by the memory that they are in.

PyTorch refuses to exchange a tensor that has a weak reference (`torch.utils.swap_tensors`), and an
exchanged one is the same object with other memory. So a claim is on a place in a storage, and ends
with the storage.

Invariant: nothing here refers to a tensor.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch


class Claims:
    """Of one process. Takes only parameters that `weights.movable` holds for."""

    def __init__(self) -> None:
        self._storages: WeakValueDictionary[tuple[int, int], torch.UntypedStorage]
        self._storages = WeakValueDictionary()
        """By its identity, which may come again once it is gone, and the first byte."""

    def claim(self, parameter: torch.nn.Parameter) -> None:
        """Note that a site has laid out this parameter where it is now."""
        self._storages[_place(parameter)] = parameter.untyped_storage()

    def claimed(self, parameter: torch.nn.Parameter) -> bool:
        """Whether a site has laid out what is there."""
        return self._storages.get(_place(parameter)) is parameter.untyped_storage()


def _place(parameter: torch.nn.Parameter) -> tuple[int, int]:
    first = int(parameter.storage_offset()) * parameter.element_size()
    return parameter.untyped_storage()._cdata, first
