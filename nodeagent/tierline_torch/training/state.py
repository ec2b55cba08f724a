"""The state that a program keeps from step to step: its bytes, and a digest of its weights.

Parameters are those that its optimizers have and those of the modules that it calls, frozen ones
and buffers included; gradients and the optimizers' tensors are looked for at the end of a step,
when they are there.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import torch

from tierline_torch.ours import ours
from tierline_torch.tensors.structures import walk

_Known = TypeVar("_Known")
_AT_ONCE_BYTES = 4 << 20
"""So many bytes of weights are read for a digest between two gates."""
_ALWAYS_BYTES = 32 << 20
"""Of weights that are no larger there is a digest after each step, else after 1, 2, 4, 8, …"""


class Keeps:
    """The modules and optimizers that were seen, which it does not keep alive."""

    def __init__(self) -> None:
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}

    def see(self, module: torch.nn.Module) -> None:
        """The program calls it."""
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            self._modules[id(module)] = weakref.ref(module)

    def see_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The program has made a step with it."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def bytes_now(self) -> tuple[int, int]:
        """Bytes of all that stays, and of the gradients among them."""
        weights = {_storage(one): one for one in (*self.weights(), *self._buffers())}
        gradients = {_storage(one.grad): one.grad for one in self.weights() if one.grad is not None}
        state = {
            _storage(one): one
            for optimizer in _living(self._optimizers)
            for _, one in walk(list(optimizer.state.values()))
            if isinstance(one, torch.Tensor)
        }
        gradients_bytes = sum(map(_bytes, gradients.values()))
        together = {**weights, **gradients, **state}
        return sum(map(_bytes, together.values())), gradients_bytes

    def weights(self) -> Iterator[torch.Tensor]:
        """Parameters, each once: in the order of the optimizers, then of the modules."""
        seen: set[int] = set()
        groups = (group for one in _living(self._optimizers) for group in one.param_groups)
        own = (one for group in groups for one in group["params"])
        for one in (*own, *(p for module in _living(self._modules) for p in module.parameters())):
            if id(one) not in seen:
                seen.add(id(one))
                yield one

    def _buffers(self) -> Iterator[torch.Tensor]:
        for module in _living(self._modules):
            yield from module.buffers()

    def digest(self, number: int, rest: Callable[[], None]) -> bytes | None:
        """SHA-256 of the weights after step `number`; None after a step in which it is left out.

        `rest` is called before, and after every few MiB.
        """
        weights = list(self.weights())
        small = sum(map(_bytes, weights)) <= _ALWAYS_BYTES
        if not (small or number & (number - 1) == 0):
            return None
        rest()
        digest = hashlib.sha256()
        some: list[torch.Tensor] = []
        for one in weights:
            some.append(one)
            if sum(map(_bytes, some)) >= _AT_ONCE_BYTES:
                ours(partial(_take_in, digest, some))
                some = []
                rest()
        ours(partial(_take_in, digest, some))
        return digest.digest()


def _take_in(digest: hashlib._Hash, tensors: list[torch.Tensor]) -> None:
    for one in tensors:
        flat = one.detach().reshape(-1).view(torch.uint8)
        if len(flat):  # not by NumPy, which an image need not have
            digest.update((ctypes.c_char * len(flat)).from_address(flat.data_ptr()))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _living(known: Mapping[int, weakref.ref[_Known]]) -> list[_Known]:
    return [one for ref in known.values() if (one := ref()) is not None]
