"""What the plugin's dispatch modes have in common: they see operators and leave compilers alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tierline_torch.looking import tensors_of


class OperatorMode(TorchDispatchMode):
    """Stands before each operator of the thread that entered it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch else loads its compiler at the first operator, 5 s, to exempt this class from it.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code stay compiled, unseen."""
        return True

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def enter(self) -> None:
        """See operators from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]  # PyTorch's

    def leave(self) -> None:
        """See no more."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # PyTorch's


class OperatorWatch(OperatorMode, ABC):
    """Is shown each operator of the program's before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._paused = False

    @abstractmethod
    def see(
        self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Look at an operator that is about to run."""

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Operators within are Tierline's own."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Show the operator, and let it run."""
        kwargs = kwargs or {}
        if not self._paused:
            self.see(func, args, kwargs)
        return func(*args, **kwargs)


def written_by(
    operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The arguments that an operator declares to write."""
    schema = getattr(operator, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(args[number] if number < len(args) else kwargs.get(argument.name))
