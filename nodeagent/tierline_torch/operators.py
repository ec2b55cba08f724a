"""What the plugin's dispatch modes have in common: they see operators and leave compilers alone."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


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
