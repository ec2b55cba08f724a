"""The weights of a model: byte ranges of storages, and the tensors of its modules that view them.

A weight is not a parameter: tied parameters view the same bytes, and a model loaded from a mapped
file has many parameters in one storage. So a weight here is a maximal run of overlapping ranges
inside one storage; on a GPU it is the whole storage, with all that lies in it. There the program,
or cuDNN, finds one part by its distance from another one. Quantised models keep their weights in
buffers, packed as small numbers: these are weights (`is_packed`). Other buffers are not (they may
be written); neither are tensors that are not plain strided ones on the task's kind of device: those
stay where they are.

Invariant: two weights of one `collect` never share a byte of a tensor; on a GPU no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.nn.parameter import is_lazy

from tierline_torch.tensors.looking import byte_range, known_bytes

ALIGNMENT = {"cpu": 64, "cuda": 512}
"""Tensors start at multiples of this in an arena, as they do in PyTorch's own allocations.

Libraries choose kernels by it, and another kernel may give another last bit."""


@dataclass(eq=False)
class Weight:
    """Bytes `start`..`end` of `storage`, viewed by `tensors`, owned by modules `owners`."""

    name: str
    storage: torch.UntypedStorage
    start: int
    end: int
    owners: set[int] = field(default_factory=set)
    """`id` of each module that has one of the tensors."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """Parameters, and buffers of packed numbers."""
    uses: int = 0
    """By how many tensors and objects the storage was used when it was chosen to be moved."""

    @property
    def size_bytes(self) -> int:
        """Bytes of content."""
        return self.end - self.start

    @property
    def in_buffers(self) -> bool:
        """Whether no parameter views it."""
        return not any(isinstance(one, torch.nn.Parameter) for one in self.tensors)

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


PACKED_BYTES = 1 << 20
"""Of a smaller buffer little is won, and more often it is a program's own table."""
_PACKED = {
    getattr(torch, name)
    for name in (
        *("int8", "uint8", "int16", "uint16", "int32", "uint32", "float8_e4m3fn", "float8_e5m2"),
        *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
    if hasattr(torch, name)
}
"""What quantised weights are kept as. Not `int64` and `bool`: indices, positions and masks."""


def is_packed(buffer: torch.Tensor) -> bool:
    """Whether a buffer looks like quantised weights (GPTQ, AWQ, HQQ and the like keep them so)."""
    try:
        return buffer.dtype in _PACKED and known_bytes(buffer) >= PACKED_BYTES
    except Exception:  # a user's class may raise anything
        return False


def tensors_of_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The module's own tensors, by name, whose bytes are weights if they can be moved."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and is_packed(buffer):
            yield name, buffer


OTHER_KIND = "no plain tensors"
_PLAIN = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def movable(tensor: torch.Tensor, kind: str) -> bool:
    """Whether the tensor's bytes can be put elsewhere by exchanging its `data`."""
    try:
        own = is_lazy(tensor) or tensor.is_conj() or tensor.is_neg()
        own = own or tensor.is_quantized or tensor._is_zerotensor()
    except Exception:  # a user's class may raise anything
        return False
    if own or not _is_plain(type(tensor)):
        return False  # a wrapper: what it computes with is not in its own storage
    return byte_range(tensor, kind) is not None


def _is_plain(kind: type[torch.Tensor]) -> bool:
    ask = kind.__torch_function__
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and (
        getattr(ask, "__func__", ask) in {getattr(one, "__func__", one) for one in _PLAIN}
    )


def immovable(modules: Iterable[tuple[str, torch.nn.Module]], kind: str) -> dict[str, int]:
    """By reason, the bytes of these modules' weights that cannot be moved."""
    found = {
        id(one): known_bytes(one)
        for _, module in modules
        for _, one in tensors_of_weights(module)
        if not movable(one, kind)
    }
    size_bytes = sum(found.values())
    return {OTHER_KIND: size_bytes} if size_bytes else {}


def memory_of(
    modules: Iterable[torch.nn.Module], kind: str, elsewhere: Callable[[torch.UntypedStorage], bool]
) -> dict[int, int]:
    """Bytes of the memory of these modules' weights on a kind of device, each storage once.

    That of storages that are `elsewhere` does not count.
    """
    found: dict[int, int] = {}
    for tensor in (one for module in modules for _, one in tensors_of_weights(module)):
        if tensor.device.type != kind:
            continue
        where = byte_range(tensor, kind)
        if where is None:  # of no plain storage
            found[-id(tensor)] = known_bytes(tensor)
        elif not elsewhere(tensor.untyped_storage()):
            found[where[0]] = tensor.untyped_storage().nbytes()
    return found


def collect(
    modules: Iterable[tuple[str, torch.nn.Module]], kind: str, *, whole: bool | None = None
) -> list[Weight]:
    """The weights of these (name, module), own tensors only, in the order in which they come.

    `kind` is that of the device, `cpu` or `cuda`. A module or tensor may come more than once.
    `whole`: whether each is a whole storage; if not said, on a GPU.
    """
    join = _join if (kind == "cuda" if whole is None else whole) else _merge
    found: dict[int, list[Weight]] = {}
    order: list[Weight] = []
    for prefix, module in modules:
        for name, tensor in tensors_of_weights(module):
            if not movable(tensor, kind):
                continue
            where = byte_range(tensor, kind)
            if where is None:
                continue
            storage, start, end = where
            weight = Weight(
                name=f"{prefix}.{name}" if prefix else name,
                storage=tensor.untyped_storage(),
                start=start,
                end=end,
                owners={id(module)},
                tensors=[tensor],
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
    known = {id(tensor) for tensor in keep.tensors}
    keep.tensors += [one for one in drop.tensors if id(one) not in known]
    absorbed.add(id(drop))


def _whole_offsets(weight: Weight) -> bool:
    """Whether each tensor starts at a whole number of its elements from the weight's start.

    Only overlapping tensors of different dtypes can fail this; they are left where they are.
    """
    return all(
        (one.storage_offset() * one.element_size() - weight.start) % one.element_size() == 0
        for one in weight.tensors
    )
