"""Bad behaviours of clients, made from the protocol's definition alone.

`wire` is a codec that knows nothing of the product's; the others hold behaviours by what they are
about. A behaviour gets a task's socket and its device, does what it does, and leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A task, as its clients see it."""

    path: Path
    """Its socket."""
    device: int
    """The protocol's number of its kind of device."""


Behaviour = tuple[str, Callable[[Target], None]]
