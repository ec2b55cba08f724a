"""Bad behaviours of clients, made from the protocol's definition alone.

`wire` is a codec that knows nothing of the product's; the others hold behaviours by what they are
about. A behaviour gets the path of a task's socket, does what it does, and leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Behaviour = tuple[str, Callable[[Path], None]]
