"""The errors that programs see. They need no PyTorch.

RuntimeError
└── TierlineError    the message says what was attempted and what to do
    └── GpuError     a kernel faulted, say: this process can use the GPU no more
"""


class TierlineError(RuntimeError):
    """Tierline cannot do what this program asks of it; the message says what to do."""


class GpuError(TierlineError):
    """The GPU has ended this process's work. It is no failure of Tierline's code."""
