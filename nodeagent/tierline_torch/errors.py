"""The one error that programs see. It needs no PyTorch.

RuntimeError
└── TierlineError    the message says what was attempted and what to do
"""


class TierlineError(RuntimeError):
    """Tierline cannot do what this program asks of it; the message says what to do."""
