"""The parts of the Kubernetes thread that the agent's readiness waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Objection = Callable[[str, str], None]
"""Hears of a part why it is not ready, from any thread; an empty text says that it is."""
CLAIMS: Final = "kubernetes"
"""The part that reads the node's claims."""
KUBELET: Final = "kubelet"
"""The part that the kubelet calls."""


def object_at_first(object_to: Objection) -> None:
    """Say what is not there before this part has begun."""
    object_to(CLAIMS, "the node's claims have not been read yet")
    object_to(KUBELET, "not yet registered")
