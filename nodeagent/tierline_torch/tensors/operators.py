"""Shows a thread's operators to their watcher, so that nothing in the program can tell.

A dispatch mode would be simpler, and shows: PyTorch decomposes attention and matrix products
otherwise while any mode is on, so the last bits of outputs differ, and programs count modes. So
operators come by a dispatch key of their own, which PyTorch keeps for tests, above everything that
a program may have there itself. A thread includes the key while it is watched, and no operator of
any other thread ever meets it.

What is shown is what PyTorch's kernels do: an operator that is made of others is not, but these
are; what a kernel calls in turn is a part of it, unless a program's Python runs there (a subclass
of Tensor, a dispatch mode). Within a function transform, and until `resume`, none is shown.

Each operator gets a kernel of its own for the key, since PyTorch finds a fallback written in Python
only where no subclass and no mode is in play.

Invariants: an operator runs once, with the arguments that it was called with. It runs as a further
dispatch of the same call, so that profilers count it once, too. What looks at it uses no
operators.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch._C import DispatchKey

from tierline_client import GiveBack
from tierline_torch.tensors import compiled
from tierline_torch.tensors.looking import tensors_of, unasked

_NAME = "TESTING_ONLY_GenericMode"
_KEY: Any = torch._C._parse_dispatch_key(_NAME)
_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_PYTHON = DispatchKey.Python
"""The key by which the program's own Python runs within an operator."""
_TRANSFORMED = DispatchKey.FuncTorchDynamicLayerFrontMode
_TRACED = DispatchKey.PythonDispatcher
_ALIASING = frozenset({"alias", "detach"})
"""PyTorch makes subclasses of what these give, which no Python object may stand for before."""
_NUMBERS = frozenset({bool, int, float, complex})
_IN_TRAINING = frozenset({"training", "train", "use_input_stats"})
_STATISTICS = frozenset({"running_mean", "running_var"})
_SPARE = ("ADInplaceOrView", "BackendSelect", "Tracer", "Autocast")
"""Beginnings of the names of keys that do nothing for an operator without a kernel for them."""

_ALIASES = (
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeImplicitAutogradNestedTensor,
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.Autograd,
)
"""Keys that stand for several, in the order in which PyTorch looks at them."""

_watches: list[OperatorWatch] = []
"""Those that watch, the outermost first. Jobs take turns, so they are of one thread; but autograd's
threads run what it began, with its keys included."""


class _Thread(threading.local):
    watches = 0
    """How many watches it has entered."""


_thread = _Thread()


_include = partial(torch._C._dispatch_tls_set_dispatch_key_included, _KEY)
_is_included = partial(torch._C._dispatch_tls_is_dispatch_key_included, _KEY)


_Watch = TypeVar("_Watch", bound="OperatorWatch")


class OperatorWatch(ABC):
    """Is shown each operator of the thread that entered it."""

    @abstractmethod
    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Look at an operator that is about to run."""

    def saw(  # noqa: B027 - few look
        self,
        operator: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
    ) -> None:
        """Look at an operator that has run."""

    def watch(self) -> None:
        """See operators from now on, those that `cover` found."""
        _watches.append(self)
        _thread.watches += 1
        compiled.begin(_is_included, _include)
        _include(True)

    def unwatch(self) -> None:
        """See no more."""
        if self in _watches:
            _watches.remove(self)
        _thread.watches = len(_watches)
        if not _watches:
            _include(False)
            compiled.end()

    def __enter__(self: _Watch) -> _Watch:
        cover()
        self.watch()
        return self

    def __exit__(self, *error: object) -> None:
        self.unwatch()


OVER: tuple[GiveBack, ...] = (
    partial(setattr, _thread, "watches", 0),
    _watches.clear,
    partial(_include, False),
)
"""Ends all watches of this thread when the program interrupts a job, for `afterwards`."""


def resume() -> None:
    """See operators again, as after a function transform."""
    if _thread.watches and torch._C._functorch.peek_interpreter_stack() is None:
        _include(True)


@contextmanager
def unseen() -> Iterator[None]:
    """Operators of this thread within are Tierline's own: no mode or profiler sees them."""
    torch._C._autograd._enable_record_function(False)
    _include(False)
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            yield
    finally:
        torch._C._autograd._enable_record_function(True)
        _include(_thread.watches > 0)


def written_by(
    operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The arguments that an operator writes, by what it declares.

    A normalisation does not declare that it writes its statistics, but whether it is in training.
    """
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return
    in_training, statistics = False, []
    for number, argument in enumerate(schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(value)
        elif argument.name in _STATISTICS:
            statistics.append(value)
        elif argument.name in _IN_TRAINING:
            in_training = value is True
    if in_training:
        yield from tensors_of(statistics)


class _Kernel:
    """The key's function for one operator."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._operator: Any = None
        """Found when it is first called: few of some thousands are."""
        self._composite = False
        self._tensors: tuple[int, ...] = ()
        self._first_keys: dict[int, Any] = {}

    def _find(self) -> Any:
        space, _, rest = self._name.partition("::")
        packet, _, overload = rest.partition(".")
        operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        self._composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            self._name, DispatchKey.CompositeImplicitAutograd
        ) and not any(str(one.type) == "number" for one in operator._schema.arguments)
        self._tensors = tuple(
            number
            for number, one in enumerate(operator._schema.arguments)
            if str(one.type) in ("Tensor", "Optional[Tensor]")
        )
        self._operator = operator
        return operator

    def __call__(self, keys: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Show the operator to the watcher, and run it."""
        _include(False)
        try:
            operator = self._operator or self._find()
            below = keys & _BELOW
            if any(type(args[at]) in _NUMBERS for at in self._tensors if at < len(args)):
                # A number in a tensor's place. Only calls by Python's way in make it one again.
                _show(operator, args, kwargs)
                first = self._first_key(below)
                result = unasked(partial(operator._op_dk, first, *args, **kwargs))
            elif keys.has(_TRACED):
                return operator(*args, **kwargs)
            elif self._composite and not keys.has(_TRANSFORMED):
                _include(True)
                return operator.redispatch(below, *args, **kwargs)
            else:
                _show(operator, args, kwargs)
                _include(keys.has(_PYTHON))
                result = operator.redispatch(below, *args, **kwargs)
                _include(False)
            for watch in _watches:
                unasked(partial(watch.saw, operator, args, kwargs, result))
            return result
        finally:
            # Of a transform's tensors PyTorch cannot make arguments for Python.
            _include(bool(_watches) and not keys.has(_TRANSFORMED))

    def _first_key(self, keys: Any) -> Any:
        """The key by which the first kernel is registered that a call with these keys meets."""
        known = self._first_keys.get(keys.raw_repr())
        if known is not None:
            return known
        left, found = keys, None
        while found is None:
            key = left.highestPriorityTypeId()
            found = self._registered(key)
            left = left.remove(key)
        self._first_keys[keys.raw_repr()] = found
        return found

    def _registered(self, key: Any) -> Any | None:
        for one in (key, *_ALIASES):
            if one is not key and not torch._C._dispatch_is_included_in_alias(key, one):
                continue
            if torch._C._dispatch_has_kernel_for_dispatch_key(self._name, one):
                idle = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(self._name, one)
                return None if idle else one
        return None if key.name.startswith(_SPARE) else key


def _show(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A program's own classes and modes must not be asked.
    for watch in _watches:
        unasked(partial(watch.see, operator, args, kwargs))


class _Kernels:
    """Of all operators that there are."""

    def __init__(self) -> None:
        self._covered: set[str] = set()
        self._libraries: dict[str, Any] = {}

    def cover(self) -> None:
        """Give operators that have none their kernel."""
        if not self._libraries:
            self._begin()
        for operator in torch._ops._higher_order_ops.values():
            operator.fallthrough(_KEY)
        for name in set(torch._C._dispatch_get_all_op_names()) - self._covered:
            self._covered.add(name)
            space, _, rest = name.partition("::")
            library = self._libraries.get(space)
            if library is None:
                library = torch._C._dispatch_library("IMPL", space, "")
                self._libraries[space] = library
            if rest not in _ALIASING:
                library.impl(rest, _NAME, _Kernel(name), True)  # type: ignore[call-arg]  # stub

    def _begin(self) -> None:
        """Operators that come later, as within a job, are not seen before `cover` comes again."""
        self._libraries["_"] = torch._C._dispatch_library("IMPL", "_", "")
        self._libraries["_"].fallback_fallthrough(_NAME)
        torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
        os.register_at_fork(after_in_child=_forget)


_kernels = _Kernels()


def cover() -> None:
    """Let watches see all operators that there are now. It takes a while the first time."""
    _kernels.cover()


def _forget() -> None:
    """A forked child is no job's."""
    _watches.clear()
    _thread.watches = 0
    _include(False)
