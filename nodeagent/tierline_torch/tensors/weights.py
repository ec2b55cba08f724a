"""The weights of a model: byte ranges of storages, and the parameters that view them.

A weight is not a parameter: tied parameters view the same bytes, and a model loaded from a mapped
file has many parameters in one storage. So a weight here is a maximal run of overlapping parameter
ranges inside one storage; on a GPU it is the whole storage, with all that lies in it. There the
program, or cuDNN, finds one part by its distance from another one. Buffers are not weights (they
may be written); neither are parameters that are not plain strided tensors of the task's kind of
device: those stay where they are.

Invariant: two weights of one `collect` never share a byte of a parameter; on a GPU no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch.nn.parameter import is_lazy

from tierline_torch.tensors.looking import byte_range, known_bytes

ALIGNMENT = {"cpu": 64, "cuda": 512}
"""Tensors start at multiples of this in an arena, as they do in PyTorch's own allocations.

Libraries choose kernels by it, and another kernel may give another last bit."""


@dataclass(eq=False)
class Weight:
    """Bytes `start`..`end` of `storage`, viewed by `parameters`, owned by modules `owners`."""

    name: str
    storage: torch.UntypedStorage
    start: int
    end: int
    owners: set[int] = field(default_factory=set)
    """`id` of each module that has one of the parameters."""
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    uses: int = 0
    """By how many tensors and objects the storage was used when it was chosen to be moved."""

    @property
    def size_bytes(self) -> int:
        """Bytes of content."""
        return self.end - self.start

    @property
    def slot_bytes(self) -> int:
        """Bytes in an arena: the content, rounded up to the alignment."""
        alignment = ALIGNMENT[self.storage.device.type]
        return -(-self.size_bytes // alignment) * alignment

    def content(self) -> torch.Tensor:
        """The bytes, as a uint8 tensor over the weight's own memory."""
        with torch.inference_mode(False):
            view = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
            return view.set_(self.storage, self.start, (self.size_bytes,), (1,))


OTHER_KIND = "no plain tensors"
_PLAIN = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def movable(parameter: torch.nn.Parameter, kind: str) -> bool:
    """Whether the parameter's bytes can be put elsewhere by exchanging its `data`."""
    try:
        own = is_lazy(parameter) or parameter.is_conj() or parameter.is_neg()
        own = own or parameter.is_quantized or parameter._is_zerotensor()
    except Exception:  # a user's class may raise anything
        return False
    if own or not _is_plain(type(parameter)):
        return False  # a wrapper: what it computes with is not in its own storage
    return byte_range(parameter, kind) is not None


def _is_plain(kind: type[torch.Tensor]) -> bool:
    ask = kind.__torch_function__
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and (
        getattr(ask, "__func__", ask) in {getattr(one, "__func__", one) for one in _PLAIN}
    )


def immovable(modules: Iterable[tuple[str, torch.nn.Module]], kind: str) -> dict[str, int]:
    """By reason, the bytes of these modules' parameters that cannot be moved."""
    found = {
        id(one): known_bytes(one)
        for _, module in modules
        for one in module._parameters.values()
        if one is not None and not movable(one, kind)
    }
    size_bytes = sum(found.values())
    return {OTHER_KIND: size_bytes} if size_bytes else {}


def memory_of(
    modules: Iterable[torch.nn.Module], kind: str, elsewhere: Callable[[torch.UntypedStorage], bool]
) -> dict[int, int]:
    """Bytes of the memory of these modules' parameters on a kind of device, each storage once.

    That of storages that are `elsewhere` does not count.
    """
    found: dict[int, int] = {}
    for parameter in (one for module in modules for one in module._parameters.values()):
        if parameter is None or parameter.device.type != kind:
            continue
        where = byte_range(parameter, kind)
        if where is None:  # of no plain storage
            found[-id(parameter)] = known_bytes(parameter)
        elif not elsewhere(parameter.untyped_storage()):
            found[where[0]] = parameter.untyped_storage().nbytes()
    return found


def collect(
    modules: Iterable[tuple[str, torch.nn.Module]], kind: str, *, whole: bool | None = None
) -> list[Weight]:
    """The weights of these (name, module), own parameters only, in the order in which they come.

    `kind` is that of the device, `cpu` or `cuda`. A module or parameter may come more than once.
    `whole`: whether each is a whole storage; if not said, on a GPU.
    """
    join = _join if (kind == "cuda" if whole is None else whole) else _merge
    found: dict[int, list[Weight]] = {}
    order: list[Weight] = []
    for prefix, module in modules:
        for name, parameter in module._parameters.items():
            if parameter is None or not movable(parameter, kind):
                continue
            where = byte_range(parameter, kind)
            if where is None:
                continue
            storage, start, end = where
            weight = Weight(
                name=f"{prefix}.{name}" if prefix else name,
                storage=parameter.untyped_storage(),
                start=start,
                end=end,
                owners={id(module)},
                parameters=[parameter],
            )
            order.append(weight)
            found.setdefault(storage, []).append(weight)
    absorbed: set[int] = set()
    for group in found.values():
        join(group, absorbed)
    return [weight for weight in order if id(weight) not in absorbed and _whole_offsets(weight)]


def _merge(group: list[Weight], absorbed: set[int]) -> None:
    """Join overlapping weights of one storage into the one that came first of each run."""
    position = {id(weight): index for index, weight in enumerate(group)}
    run: Weight | None = None
    for weight in sorted(group, key=lambda one: (one.start, one.end)):
        if run is None or weight.start >= run.end:
            run = weight
            continue
        keep, drop = sorted((run, weight), key=lambda one: position[id(one)])
        keep.start, keep.end = run.start, max(run.end, weight.end)
        _absorb(keep, drop, absorbed)
        run = keep


def _join(group: list[Weight], absorbed: set[int]) -> None:
    """Join all weights of one storage into the first, which is the storage."""
    keep = group[0]
    for drop in group[1:]:
        _absorb(keep, drop, absorbed)
    keep.start, keep.end = 0, keep.storage.nbytes()


def _absorb(keep: Weight, drop: Weight, absorbed: set[int]) -> None:
    keep.owners |= drop.owners
    known = {id(parameter) for parameter in keep.parameters}
    keep.parameters += [one for one in drop.parameters if id(one) not in known]
    absorbed.add(id(drop))


def _whole_offsets(weight: Weight) -> bool:
    """Whether each parameter starts at a whole number of its elements from the weight's start.

    Only overlapping parameters of different dtypes can fail this; they are left where they are.
    """
    return all(
        (one.storage_offset() * one.element_size() - weight.start) % one.element_size() == 0
        for one in weight.parameters
    )
