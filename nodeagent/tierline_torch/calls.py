"""Where Tierline stands in PyTorch: around `torch.nn.Module.__call__`.

Why not PyTorch's global forward hooks: one such hook takes every call of every module off the
fast path for ever. Why not hooks on the gated modules: they would be pickled, copied and traced
with the user's model. This wrapper leaves nothing in any module, and is removed from the path of
compiled code, because `torch._dynamo` takes the `__call__` that it finds when it is first imported
for the original.

A thread has an `invoke` while it runs a job: it gets every module call of the job. Without one, a
module call is outermost, and whatever `loading` has set decides whether it is a job. Where nothing
is gated at modules, as on a GPU, `invoke` is `plain`, and a call costs one thread-local lookup more
than without Tierline: an eager model calls hundreds of modules in a job of milliseconds.

Invariant: a module call that is not outermost has as many Python frames as without Tierline, so a
model that just fits below Python's recursion limit does so here. What stands around such a call is
a `Gate`, which has returned before the module runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

Invoke = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]

original: Callable[..., Any] = torch.nn.Module.__call__
"""PyTorch's own `Module.__call__`."""

_known = original is vars(torch.nn.Module).get("_wrapped_call_impl") and hasattr(
    torch.nn.Module, "_compiled_call_impl"
)
"""Whether `original` only looks for a compiled module and then calls `_call_impl`."""

_is_compiling = torch.compiler.is_dynamo_compiling


_began_in = os.getpid()


def is_forked() -> bool:
    """Whether this process was forked from one that had loaded the plugin."""
    return os.getpid() != _began_in


class _Current(threading.local):
    invoke: Invoke | None = None
    without_lease: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context of its job while it needs no device, so that others may have it."""


current = _Current()


class Gate:
    """An `invoke` that does something before and after each call, and nothing during it."""

    def enter(self, module: torch.nn.Module) -> Any:
        """Before a call; `leave` gets what this gives."""

    def leave(self, entered: Any) -> None:
        """After it."""

    def __call__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call between the two."""
        entered = self.enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            self.leave(entered)


def plain(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module as PyTorch would."""
    return original(module, *args, **kwargs)


@contextmanager
def invoking(invoke: Invoke | None) -> Iterator[None]:
    """Let `invoke` have this thread's module calls for a while."""
    before = current.invoke
    current.invoke = invoke
    try:
        yield
    finally:
        current.invoke = before


@wraps(original)  # a program that looks finds PyTorch's names and signature
def _call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: PLR0911  # no frames of its own
    if _is_compiling():  # traced from a class's own `__call__`, by `super()`
        return original(self, *args, **kwargs)
    invoke = current.invoke
    if invoke is plain:
        if _known and self._compiled_call_impl is None:
            return self._call_impl(*args, **kwargs)
        return original(self, *args, **kwargs)
    if isinstance(invoke, Gate):
        entered = invoke.enter(self)
        try:
            if _known and self._compiled_call_impl is None:
                return self._call_impl(*args, **kwargs)
            return original(self, *args, **kwargs)
        finally:
            invoke.leave(entered)
    if invoke is not None:
        return invoke(self, args, kwargs)
    return _outermost(self, args, kwargs)


_outermost: Invoke = plain


def set_outermost(invoke: Invoke) -> None:
    """Let `invoke` have the module calls that no other encloses, in every thread."""
    global _outermost  # noqa: PLW0603  # a hook point is one per process
    _outermost = invoke


def install() -> None:
    """Wrap `Module.__call__`, once."""
    if torch.nn.Module.__call__ is original:
        torch.nn.Module.__call__ = _call  # type: ignore[method-assign]  # the point of this module


def remove() -> None:
    """Leave `Module.__call__` as it was."""
    torch.nn.Module.__call__ = original  # type: ignore[method-assign]  # what it was
