"""Steps: where one begins and ends, and which task has the device while one is in progress.

A step begins with the first forward with gradients, and ends with the step of a PyTorch optimizer
after a backward: so gradient accumulation is one step, and so is what several models do for one
backward. Where the program has made no such optimizer, it ends at the next forward after a
backward. What runs without gradients outside of a step is a turn by itself, and not counted.

A step takes the device at its first gate and keeps it from gate to gate, but gives it away

* at any gate at which others wait for it, and takes it again in its turn;
* when nothing of it ran for `BETWEEN_S`: between a forward and its backward, or after that. So a
  forward whose backward never comes keeps others waiting no longer than that;
* when its thread has stood still for `_STILL_S` elsewhere: it waits for something that is not the
  device, such as the data of a forward;
* at its end: a loop that waits for its data loader has nothing.

Invariant: whoever computes between two gates of a step has the device, unless it came from one of
the last three ways and has not reached its next gate.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol

import torch

from tierline_torch.belonging import computed_s, sleeps
from tierline_torch.training.running import optimizing, runs
from tierline_torch.training.state import Keeps

BETWEEN_S = 0.02
"""How long a step keeps the device while neither a forward, nor a backward, nor an optimizer of it
runs: the program computes its loss, or scales and clips gradients."""
_STILL_S = 0.15
_LOOK_S = 0.01
_MANY = 12
"""So many forwards without a step are told."""
_IDLE = 0.02
"""Part of `_STILL_S` in which a thread that waits may yet compute."""


class Turn(Protocol):
    """The device, for a step. Called with the steps' lock."""

    held: bool
    """Whether the process has it."""

    def begins(self) -> None:
        """A step begins: what comes next is its."""

    def take(self) -> None:
        """Wait for the device. Raises TierlineError."""

    def give_back(self) -> None:
        """Give it back, if it is there. Raises TierlineError."""

    def pass_gate(self) -> None:
        """Having it: let those go first that wait for it. Raises TierlineError."""

    def ends(self, number: int, keeps: Keeps, rest: Callable[[], None]) -> None:
        """Step `number` is over: give the device back, and count the step.

        `keeps` is what the step leaves in memory, and `rest` a gate for what takes a while.
        Raises TierlineError.
        """


_Given = ParamSpec("_Given")
_Told = Callable[Concatenate["Steps", _Given], None]


def _of_the_program(told: _Told[_Given]) -> _Told[_Given]:
    """What the program does, with the steps' lock; nothing where its thread has that already.

    Then a handler of a signal, say, interrupted what a step does here, and calls a model: it
    computes as a part of what it interrupted.
    """

    @wraps(told)
    def tell(self: Steps, /, *args: _Given.args, **kwargs: _Given.kwargs) -> None:
        within: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # the stub lacks it
        if not within:
            with self._lock:
                told(self, *args, **kwargs)

    return tell


class _Nobodys:
    """In a forked child, in which hooks of its parent are left."""

    held = False

    def begins(self) -> None:
        """No step is its."""

    def take(self) -> None:
        """It needs nothing."""

    def give_back(self) -> None:
        """It has nothing."""

    def pass_gate(self) -> None:
        """Nobody asks it."""

    def ends(self, number: int, keeps: Keeps, rest: Callable[[], None]) -> None:
        """Its parent counts."""


class Steps:
    """The steps of this process."""

    def __init__(self, turn: Turn, say: Callable[[str], None], most: int | None = None) -> None:
        """After `most` steps the program ends."""
        self._turn: Turn = turn
        self._say = say
        self._most = most
        self._lock = threading.RLock()
        self._open = False
        """A step is in progress."""
        self._backward = False
        """One of its backwards has ended."""
        self._graph = -1
        """The number of the backward that was seen last."""
        self._optimizers: dict[int, int] = {}
        """Ids of those whose step is in progress, with its thread; one that raised may be there."""
        self._between_s: float | None = None
        """Since when nothing of the step runs."""
        self._passed_s = 0.0
        """When a gate was passed last, and by which thread (the kernel's number, and Python's)."""
        self._thread = self._ident = 0
        self._optimizes = False
        """Whether an optimizer of PyTorch's has made a step."""
        self._watched = threading.Event()
        self._watcher = False
        self.keeps = Keeps()
        self.number = 0
        """Steps so far."""
        self.forwards = 0
        """Outermost forwards with gradients so far."""
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock, self._turn = threading.RLock(), _Nobodys()

    # -- what the program does

    @_of_the_program
    def forward_begins(self, module: torch.nn.Module, *, trains: bool) -> None:
        """An outermost forward is called. Raises TierlineError."""
        inside = self._is_optimizing() or in_backward()  # a closure, or computed once more
        if trains and not inside:
            self.forwards += 1
            if self.forwards == _MANY and not self.number:
                self._say(no_step(self.forwards))
            if self._open and self._backward and not self._has_optimizer():
                self._say(
                    "the program has no optimizer of PyTorch's: a step ends at the next "
                    "forward after a backward"
                )
                self._end()
            self._begin()
        self.keeps.see(module)
        self._gate()

    @_of_the_program
    def forward_ends(self) -> None:
        """It is over, whatever came of it. Raises TierlineError."""
        if in_backward() or self._is_optimizing():
            return
        if self._open:
            self._between_s = time.monotonic()
        else:
            self._turn.give_back()

    @_of_the_program
    def gate(self) -> None:
        """Others may go first here. Takes the device if the step has it not. TierlineError."""
        self._gate()

    def _gate(self) -> None:
        self._between_s = None
        if self._turn.held:
            self._turn.pass_gate()
        else:
            self._turn.take()
            self._watch()
        self._passed_s, self._thread = time.monotonic(), threading.get_native_id()
        self._ident = threading.get_ident()

    @_of_the_program
    def node(self, _gradients: object) -> None:
        """A node of autograd runs next. Raises TierlineError."""
        self._begin()
        graph = torch._C._current_graph_task_id()
        if graph != self._graph:
            self._graph = graph
            torch.autograd.Variable._execution_engine.queue_callback(
                self._backward_ends
            )  # as DDP does
        self._gate()

    @_of_the_program
    def _backward_ends(self) -> None:
        self._backward = True
        if not self._is_optimizing():
            self._between_s = time.monotonic()

    @_of_the_program
    def optimizer_begins(self, optimizer: object) -> None:
        """An optimizer makes a step. Raises TierlineError."""
        self._begin()
        self._optimizers[id(optimizer)] = threading.get_ident()
        self._gate()

    @_of_the_program
    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has made it, which ends the step. Raises TierlineError, or SystemExit at the last."""
        self._optimizers.pop(id(optimizer), None)
        self._optimizes = True
        self.keeps.see_optimizer(optimizer)
        if self._is_optimizing(besides=1):
            return  # one that calls another
        if self._backward or not self.forwards:
            self._end()
        else:  # another one for the same backward
            self._turn.give_back()
            self._open, self._between_s = False, None

    def _is_optimizing(self, besides: int = 0) -> bool:
        """Whether an optimizer makes a step, in addition to so many of this thread."""
        here = threading.get_ident()
        self._optimizers = {
            key: thread
            for key, thread in self._optimizers.items()
            if optimizing(thread) > (besides if thread == here else 0)
        }
        return bool(self._optimizers)

    # -- begin and end

    def _begin(self) -> None:
        if not self._open:
            self._open, self._backward = True, False
            self._turn.begins()

    def _end(self) -> None:
        self.number += 1
        self._open = self._backward = False
        self._turn.ends(self.number, self.keeps, self._gate)
        self._between_s = None
        if self.number == self._most:
            self._say(f"the program ends, as its task is complete after {self.number} steps")
            raise SystemExit(0)

    def _has_optimizer(self) -> bool:
        return self._optimizes or any(map(_was_made, _kinds()))

    # -- meanwhile

    def _watch(self) -> None:
        self._watched.set()
        if not self._watcher:
            self._watcher = True
            # Not `threading`, which would count it and give it the program's tracer.
            _thread.start_new_thread(self._look_on, ())

    def _look_on(self) -> None:
        still_s = seen_s = 0.0
        while True:
            self._watched.wait()
            time.sleep(_LOOK_S)
            with self._lock:
                if not self._turn.held:
                    self._watched.clear()
                    continue
                now_s = time.monotonic()
                between_s, passed_s = self._between_s, self._passed_s
                if between_s is None and now_s - passed_s >= BETWEEN_S and not runs(self._ident):
                    between_s = passed_s  # it was left by an exception
                if between_s is not None:
                    if now_s - between_s >= BETWEEN_S:
                        self._turn.give_back()
                    continue
                if now_s - passed_s < _STILL_S:
                    still_s = 0.0
                    continue
                # Looked at only where a gate is late.
                computed, idle = computed_s(self._thread), sleeps(self._thread)
                if not idle or computed - seen_s > _IDLE * _LOOK_S or still_s == 0.0:
                    still_s, seen_s = now_s, computed
                elif now_s - still_s >= _STILL_S:
                    self._turn.give_back()


def no_step(forwards: int) -> str:
    """The sentence about a program that only runs forwards."""
    return (
        f"the program ran {forwards} forwards with gradients and made no step: a step ends with "
        "the step of an optimizer of PyTorch's after a backward"
    )


def in_backward() -> bool:
    """Whether this thread runs a backward."""
    return bool(torch._C._current_graph_task_id() >= 0)


def _kinds() -> list[type[torch.optim.Optimizer]]:
    """All classes of optimizers."""
    found: list[type[torch.optim.Optimizer]] = [torch.optim.Optimizer]
    for kind in found:
        found += kind.__subclasses__()  # looked at in their turn
    return found


def _was_made(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether there was an optimizer of this class: the first one puts hooks around its step."""
    return "step" in vars(kind) and bool(getattr(vars(kind)["step"], "hooked", False))


def told_steps() -> int | None:
    """After how many steps the program ends, as its task says; None: when it wants."""
    told = os.environ.get("TIERLINE_TRAINING_STEPS")
    return int(told) if told else None
