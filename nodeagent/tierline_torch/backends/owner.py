"""The process whose jobs a backend runs, as the backend knows it."""

from __future__ import annotations

from typing import Protocol

from tierline_torch.errors import TierlineError
from tierline_torch.learning.site import Backend, Window


class Owner(Protocol):
    """The process, as `process.Process` is."""

    window: Window | None
    """The current release's, while a loop over releases is between two of them."""
    lessons: int
    """How many jobs taught something so far."""

    def is_of(self, backend: Backend) -> bool:
        """Whether this backend is its own, and not of the process that it was forked from."""

    def say(self, sentence: str) -> None:
        """Tell the user, once."""

    def count_failed(self, error: TierlineError) -> None:
        """A job failed in Tierline's code."""

    def settle_all(self, backend: Backend) -> None:
        """Settle every site by what was seen so far."""
