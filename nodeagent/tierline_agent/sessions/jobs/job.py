"""A job as its client's session sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tierline_agent.memory.arenas import Arena
from tierline_agent.scheduling.execution import Execution

LATEST_NS: Final = 1 << 62
"""No moment that a client names is later."""


@dataclass
class Job:
    """The job of a client."""

    number: int
    arena: Arena | None
    release_ns: int
    deadline_ns: int
    warmup: bool
    due_ns: int = 0
    """When it is due among others (`policy.releases`)."""
    eligible_ns: int = 0
    """Its time among them."""
    execution: Execution | None = None
    granted_ns: int | None = None
    revoked_ns: int | None = None
    """When it was revoked."""
    fences: bool = False
    """It could not be resumed, and its ring is its own until its client knows."""
    yielded: int | None = None
    """The sequence of its YIELD that was not answered yet."""
    throttled: bool = False
    """It was, for what others waited beyond its task's plan."""

    @property
    def revoked(self) -> bool:
        """Whether it was."""
        return self.revoked_ns is not None
