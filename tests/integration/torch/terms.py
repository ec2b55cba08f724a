"""What the program and its test agree on; it loads neither PyTorch nor a model."""

PAIR = ("half", "attention")
"""Models that run together in one explicit job."""
PAIR_DEADLINE_S = 0.5
RELEASES = 4
