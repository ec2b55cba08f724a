"""Whether the agent lives and is ready, as the kubelet's probes ask.

It lives while its event loop turns: the loop marks a moment every few seconds, and the thread that
asks compares. It is ready while nothing that was named here objects; each objection is a sentence.
Asked by the endpoint's threads: single assignments only. Told by the event loops' threads, in turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STUCK_S = 60.0
"""A loop that has not turned for so long hangs."""


class Health:
    """The answers to probes."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._turned_at_s = clock_s()
        self._objections: dict[str, str] = {}
        self._telling = threading.Lock()

    def turned(self) -> None:
        """The event loop turned."""
        self._turned_at_s = self._clock_s()

    def set(self, part: str, objection: str) -> None:
        """Note why `part` is not ready; an empty text says that it is."""
        with self._telling:  # or what another thread told meanwhile would be lost
            self._objections = {**self._objections, part: objection}

    @property
    def stuck(self) -> str:
        """Why the agent should be restarted; empty if it should not."""
        since_s = self._clock_s() - self._turned_at_s
        return "" if since_s <= STUCK_S else f"the event loop has not turned for {since_s:.0f} s"

    @property
    def unready(self) -> tuple[str, ...]:
        """The parts that are not ready, a sentence each."""
        found = [f"{part}: {why}" for part, why in self._objections.items() if why]
        return tuple([self.stuck, *found] if self.stuck else found)
