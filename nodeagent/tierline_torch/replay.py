"""Runs a job's forwards again on the same inputs, and leaves no trace of having done so.

Learning needs a second look at a job, and sealing a check of it. What a forward may change is put
back: its inputs are copies, the modules' tensors and attributes and the random generators are
those from before the job while it is repeated, and those from after it in the end.

What cannot be copied cannot be repeated: `UnrepeatableError` says what.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tierline_torch.structures import difference

_REGISTRIES = frozenset({"_parameters", "_modules"})
"""Attributes of a module that are not its state: exchanged parameters are the arena's business."""

Invoke = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class UnrepeatableError(Exception):
    """A forward of this job cannot be run again; the message is the reason, for the status."""


@dataclass(frozen=True)
class Modes:
    """The modes of PyTorch under which a forward ran."""

    inference: bool
    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    """(kind of device, whether it is on, its dtype)."""

    @staticmethod
    def current() -> Modes:
        """Those of this thread, now."""
        return Modes(
            inference=torch.is_inference_mode_enabled(),
            grad=torch.is_grad_enabled(),
            autocast=tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in ("cpu", "cuda")
            ),
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make them this thread's for a while."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad and not self.inference))
            for kind, enabled, dtype in self.autocast:
                if enabled != torch.is_autocast_enabled(kind) or enabled:
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield


@dataclass(frozen=True)
class Forward:
    """One outermost forward of a job: copies of what went in, and what came out."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modes: Modes
    output: list[Any] = field(default_factory=list)
    """Empty until the forward has returned."""


def note_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward:
    """Copy a forward's inputs before it runs. Raises UnrepeatableError."""
    try:
        copied_args, copied_kwargs = copy.deepcopy((args, kwargs))
    except Exception as error:  # a user's class may raise anything from __deepcopy__
        raise UnrepeatableError(
            f"inputs of {type(module).__name__} cannot be copied: {type(error).__name__}"
        ) from error
    return Forward(module, copied_args, copied_kwargs, Modes.current())


class State:
    """The state of modules and generators at one moment. Taking it copies every buffer."""

    def __init__(self, roots: Sequence[torch.nn.Module]) -> None:
        self._generators = (torch.get_rng_state(), random.getstate(), np.random.get_state())
        # Reading it would make a context in a process that uses no GPU.
        used = torch.cuda.is_initialized()
        self._device_generator = torch.cuda.get_rng_state() if used else None
        self._attributes: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._add(roots)

    def joined(self, roots: Sequence[torch.nn.Module]) -> State:
        """This state, and that of more modules as it is now."""
        self._add(roots)
        return self

    def _add(self, roots: Sequence[torch.nn.Module]) -> None:
        known = {id(module) for module, _ in self._attributes}
        for module in _modules(roots):
            if id(module) in known:
                continue
            kept = {key: one for key, one in vars(module).items() if key not in _REGISTRIES}
            self._attributes.append((module, kept))
            for value in kept.values():
                self._keep(value)

    def _keep(self, value: object) -> None:
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            if value.layout is torch.strided and id(value) not in self._tensors:
                with torch.inference_mode(value.is_inference()):
                    self._tensors[id(value)] = (value, value.detach().clone())
        elif isinstance(value, (dict, list, set, deque)) and id(value) not in self._containers:
            self._containers[id(value)] = (value, copy.copy(value))
            for item in value.values() if isinstance(value, dict) else value:
                self._keep(item)

    def restore(self) -> None:
        """Put everything back as it was when this was taken."""
        for module, kept in self._attributes:
            own = vars(module)
            for key in [one for one in own if one not in kept and one not in _REGISTRIES]:
                del own[key]
            own.update(kept)
        for container, content in self._containers.values():
            if _same_items(container, content):
                continue
            container.clear()
            if isinstance(container, (dict, set)):
                container.update(content)
            else:
                container.extend(content)
        for tensor, content in self._tensors.values():
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not _same_bits(tensor, content):
                    tensor.copy_(content)
        torch_state, python_state, numpy_state = self._generators
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator)


def _same_items(container: Any, content: Any) -> bool:
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), content.items(), strict=True)
        return all(one[0] == two[0] and one[1] is two[1] for one, two in pairs)
    return all(one is two for one, two in zip(container, content, strict=True))


def _same_bits(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    return tensor.shape == content.shape and difference(tensor, content) is None


def _modules(roots: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    return list({id(module): module for root in roots for module in root.modules()}.values())


@dataclass
class Replay:
    """A job that can be run again."""

    forwards: list[Forward]
    before: State
    after: State | None = None
    """Taken when the job's own run was over."""

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The modules of the outermost forwards."""
        return [forward.module for forward in self.forwards]

    def finish(self) -> None:
        """Note the state that the program shall find again after all repetitions."""
        self.after = State(self.roots)

    def run(self, invoke: Invoke) -> list[Any]:
        """Repeat the forwards, each through `invoke`; their outputs."""
        if self.after is None:
            raise RuntimeError("cannot repeat a job before it is over: call finish() first")
        self.before.restore()
        try:
            outputs = []
            for forward in self.forwards:
                args, kwargs = copy.deepcopy((forward.args, forward.kwargs))
                with forward.modes.entered():
                    outputs.append(invoke(forward.module, args, kwargs))
            return outputs
        finally:
            self.after.restore()
