"""What a model's forwards may change beside their outputs: kept, and put back.

State is what is reached from the modules: their attributes and buffers, and through these tensors,
arrays, containers, plain objects, closures and generators of random numbers. Each is put back in
place, as others may refer to it, too. Another kind of object can only be compared before and after
a forward: most do not change, and with one that does the forward cannot be repeated. Neither can a
forward that writes a parameter: nobody keeps a copy of the weights.

Not seen are globals, attributes of classes, and what is written to a parameter past PyTorch's count
of its versions (through `data`, or to one that was made in inference mode).
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from tierline_torch import anatomy
from tierline_torch.structures import difference
from tierline_torch.weights import byte_range

_MOST_OBJECTS = 1_000_000
"""Reached from one job's modules: what holds more is no model, but the program around it."""
_MOST_COPIED_BYTES = 4 << 30
"""Of tensors and arrays. What is reached beyond that, as a table to look things up in, is compared.
"""

_REGISTRIES = frozenset({"_parameters", "_modules"})
"""Attributes of a module that are not its state: exchanged parameters are the arena's business."""


class UnrepeatableError(Exception):
    """A forward of this job cannot be run again; the message is the reason, for the status."""


@dataclass(frozen=True)
class _Compared:
    """Something that cannot be put back."""

    look: Callable[[], object]
    """What it is now; None if nothing tells."""
    seen: object
    reason: str
    """Why the job cannot be repeated if it is not as it was."""

    @property
    def changed(self) -> bool:
        """Whether it is not, or may not be, as it was."""
        return self.seen is None or self.look() != self.seen


class State:
    """The state of modules and generators at one moment. Taking it copies every buffer."""

    def __init__(self, roots: Sequence[torch.nn.Module]) -> None:
        """Raises UnrepeatableError."""
        self._generators = (torch.get_rng_state(), random.getstate(), np.random.get_state())
        # Reading it would make a context in a process that uses no GPU.
        used = torch.cuda.is_initialized()
        self._device_generator = torch.cuda.get_rng_state() if used else None
        self._reached: dict[int, object] = {}
        """By id; held so that no id is used twice."""
        self._restorers: list[Callable[[], object]] = []
        self._copied_bytes = 0
        self._compared: list[_Compared] = []
        self._parameters: list[tuple[torch.nn.Parameter, _Compared]] = []
        self._add(roots)

    def joined(self, roots: Sequence[torch.nn.Module]) -> State:
        """This state, and that of more modules as it is now. Raises UnrepeatableError."""
        self._add(roots)
        return self

    def restore(self) -> None:
        """Put everything back as it was when this was taken."""
        for put_back in self._restorers:
            put_back()
        torch_state, python_state, numpy_state = self._generators
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator)

    def lost(self) -> str | None:
        """What was changed since this was taken and `restore` cannot put back; None if nothing."""
        return next((one.reason for one in self._compared if one.changed), None)

    def written(self) -> list[torch.nn.Parameter]:
        """The parameters that were written since this was taken."""
        return [parameter for parameter, compared in self._parameters if compared.changed]

    def _add(self, roots: Sequence[torch.nn.Module]) -> None:
        # No recursion: a chain of objects may be longer than Python's stack.
        waiting: list[tuple[object, str]] = [(root, type(root).__name__) for root in roots]
        while waiting:
            value, where = waiting.pop()
            if id(value) in self._reached or anatomy.is_constant(value):
                continue
            self._reached[id(value)] = value
            if len(self._reached) > _MOST_OBJECTS:
                raise UnrepeatableError(f"{where} leads to more than {_MOST_OBJECTS} objects")
            if isinstance(value, torch.nn.Module):
                waiting += self._take_module(value)
            else:
                parts = self._take(value, where)
                waiting += [(one, where) for one in parts if type(one) not in anatomy.SCALARS]

    def _compare(self, look: Callable[[], object], reason: str) -> _Compared:
        compared = _Compared(look, look(), reason)
        self._compared.append(compared)
        return compared

    def _take_module(self, module: torch.nn.Module) -> list[tuple[object, str]]:
        kind = type(module).__name__
        kept = {key: one for key, one in vars(module).items() if key not in _REGISTRIES}
        self._restorers.append(functools.partial(_put_back_attributes, module, kept))
        parts = list(kept.items())
        if isinstance(module, torch.jit.ScriptModule):
            parts += self._take_compiled(module)
        for registry in (module._parameters, module._modules):
            registered = [(key, one) for key, one in registry.items() if one is not None]
            parts += registered
            self._compare(
                functools.partial(_all_there, registry, registered),
                f"a forward of {kind} exchanges its parameters or modules",
            )
        return [(one, f"{kind}.{key}") for key, one in parts if type(one) not in anatomy.SCALARS]

    def _take_compiled(self, module: torch.jit.ScriptModule) -> list[tuple[str, Any]]:
        """Keep the attributes that compiled code has, and Python has not."""
        own: Any = module._c
        names = set(module._concrete_type.get_attributes()) - set(module._parameters.keys())
        kept = {name: own.getattr(name) for name in names}
        for name, value in kept.items():
            self._restorers.append(functools.partial(own.setattr, name, value))
        return list(kept.items())

    def _take(self, value: Any, where: str) -> Iterable[object]:
        """Keep the state of one object; what it refers to is returned."""
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._take_tensor(value, where)
            return ()
        if self._take_generator(value):
            return ()
        if anatomy.is_machinery(kind):
            return ()
        attributes = self._take_attributes(value)
        referred = _referred(value)
        if issubclass(kind, np.ndarray):
            referred = self._take_array(value, where)
        elif issubclass(kind, types.CellType):
            referred = self._take_cell(value)
        elif referred is None:
            referred = self._take_content(value)
            if anatomy.is_more_than_attributes(kind):
                self._compare(
                    functools.partial(anatomy.fingerprint, value),
                    f"{where} holds what can neither be put back nor compared, or changes: "
                    f"{kind.__qualname__}",
                )
        return [*attributes, *referred]

    def _take_tensor(self, tensor: torch.Tensor, where: str) -> None:
        if (
            isinstance(tensor, torch.nn.Parameter)
            or tensor.layout is not torch.strided
            # One that was made in inference mode has no versions to be compared by.
            or not (tensor.is_inference() or self._may_copy(tensor.nbytes))
        ):
            compared = self._compare(
                functools.partial(_version, tensor), f"a forward writes {where}"
            )
            if isinstance(tensor, torch.nn.Parameter):
                self._parameters.append((tensor, compared))
            return
        with torch.inference_mode(tensor.is_inference()):
            content = tensor.detach().clone()

        def put_back() -> None:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if difference(tensor, content) is not None:
                    tensor.copy_(content)

        self._restorers.append(put_back)
        self._compare(lambda: (tensor.shape, tensor.dtype), f"a forward resizes {where}")

    def _may_copy(self, size_bytes: int) -> bool:
        within = self._copied_bytes + size_bytes <= _MOST_COPIED_BYTES
        self._copied_bytes += size_bytes if within else 0
        return within

    def _take_array(self, array: np.ndarray[Any, Any], where: str) -> Iterable[object]:
        plain = array.view(np.ndarray)
        objects = plain.dtype.hasobject
        if array.flags.writeable and not self._may_copy(array.nbytes):
            look = functools.partial(anatomy.fingerprint, array)
            self._compare(look, f"a forward writes {where}, or may write it")
        elif array.flags.writeable:
            content = plain.copy()

            def put_back() -> None:
                if objects or difference(plain, content) is not None:
                    plain[...] = content

            self._restorers.append(put_back)
            self._compare(lambda: (array.shape, array.dtype), f"a forward resizes {where}")
        return plain.ravel().tolist() if objects else ()

    def _take_generator(self, value: Any) -> bool:
        """Keep a generator of random numbers; False if it is none."""
        kind = type(value)
        if issubclass(kind, (torch.Generator, np.random.RandomState)):
            self._restorers.append(functools.partial(value.set_state, value.get_state()))
        elif issubclass(kind, random.Random):
            self._restorers.append(functools.partial(value.setstate, value.getstate()))
        elif issubclass(kind, (np.random.Generator, np.random.BitGenerator)):
            bits: Any = value.bit_generator if issubclass(kind, np.random.Generator) else value
            self._restorers.append(functools.partial(setattr, bits, "state", bits.state))
        else:
            return False
        return True

    def _take_cell(self, cell: types.CellType) -> Iterable[object]:
        """Keep a variable of a closure."""
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            self._restorers.append(functools.partial(delattr, cell, "cell_contents"))
            return ()
        self._restorers.append(functools.partial(setattr, cell, "cell_contents", content))
        return (content,)

    def _take_attributes(self, value: object) -> Iterable[object]:
        kept = dict(anatomy.attributes(value))
        if kept or type(value).__dictoffset__:
            self._restorers.append(functools.partial(_put_back_attributes, value, kept))
        slots = anatomy.slots(type(value))
        in_slots = {slot: slot.__get__(value) for slot in slots if _is_set(slot, value)}
        for slot in slots:
            self._restorers.append(functools.partial(_put_back_slot, slot, value, in_slots))
        return [*kept.values(), *in_slots.values()]

    def _take_content(self, value: Any) -> Iterable[object]:
        """Keep what a container holds."""
        base = anatomy.base(type(value))
        if issubclass(base, dict):
            items = list(base.items(value))
            self._restorers.append(functools.partial(_put_back_items, base, value, items))
            return [part for item in items for part in item]
        if not issubclass(base, (list, set, deque, tuple, frozenset)):
            return ()
        content = list(base.__iter__(value))
        if not issubclass(base, (tuple, frozenset)):
            self._restorers.append(functools.partial(_put_back_content, base, value, content))
        return content


def _referred(value: Any) -> Iterable[object] | None:
    """What a callable or a view refers to, which has no other state; None for other kinds."""
    referred: Iterable[object] | None = None
    match value:
        case types.FunctionType():
            referred = (*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__)
        case types.MethodType():
            referred = (value.__self__, value.__func__)
        case types.BuiltinFunctionType() | types.MethodWrapperType():
            referred = (value.__self__,)
        case functools.partial():
            referred = (value.func, value.args, value.keywords)
        case staticmethod() | classmethod():
            referred = (value.__func__,)
        case types.MappingProxyType():
            referred = list(value.values())
    return referred


def _version(tensor: torch.Tensor) -> object:
    """What changes when a tensor is written, moved, or made by its module's first forward."""
    if is_lazy(tensor):
        return "none yet"
    written = 0 if tensor.is_inference() else tensor._version
    return written, byte_range(tensor, tensor.device.type)


def _all_there(registry: Any, registered: Sequence[tuple[str, object]]) -> bool:
    now = dict(registry.items())
    return all(now.get(key) is one for key, one in registered)


def _put_back_attributes(owner: object, kept: dict[str, Any]) -> None:
    left = _REGISTRIES if isinstance(owner, torch.nn.Module) else ()
    own = anatomy.attributes(owner)
    for key in [one for one in own if one not in kept and one not in left]:
        del own[key]
    for key, one in kept.items():
        if key not in own or own[key] is not one:
            own[key] = one


def _is_set(slot: types.MemberDescriptorType, owner: object) -> bool:
    try:
        slot.__get__(owner)
    except AttributeError:
        return False
    return True


def _put_back_slot(
    slot: types.MemberDescriptorType,
    owner: object,
    kept: dict[types.MemberDescriptorType, object],
) -> None:
    if slot not in kept:
        if _is_set(slot, owner):
            slot.__delete__(owner)
    elif not _is_set(slot, owner) or slot.__get__(owner) is not kept[slot]:
        slot.__set__(owner, kept[slot])


def _put_back_items(base: Any, owner: Any, items: list[tuple[Any, Any]]) -> None:
    """By the methods of Python's own class: a user's may refuse, or do more."""
    now = list(base.items(owner))
    if len(now) == len(items) and all(
        one[0] is two[0] and one[1] is two[1] for one, two in zip(now, items, strict=True)
    ):
        return
    base.clear(owner)
    for key, value in items:
        base.__setitem__(owner, key, value)


def _put_back_content(base: Any, owner: Any, content: list[Any]) -> None:
    now = list(base.__iter__(owner))
    if len(now) == len(content) and all(one is two for one, two in zip(now, content, strict=True)):
        return
    base.clear(owner)
    (base.update if base is set else base.extend)(owner, content)
