"""Runs a job's forwards again on the same inputs, and leaves no trace of having done so.

Learning needs a second look at a job, and sealing a check of it. What a forward may change is put
back: its inputs are copies, the modules' state and the random generators are those from before the
job while it is repeated, and those from after it in the end.

What cannot be copied cannot be repeated: `UnrepeatableError` says so before the first repetition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tierline_torch.state import State, UnrepeatableError

Invoke = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]


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
        """Note the state that the program shall find again after all repetitions.

        Raises UnrepeatableError if the job changed what could not be put back.
        """
        lost = self.before.lost()
        if lost is not None:
            raise UnrepeatableError(lost)
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
