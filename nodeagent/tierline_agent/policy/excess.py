"""The excess of a task over what admission charged for it: it costs others no more than its share.

A job may take longer than its plan, up to a limit (`stuck`), and one that does keeps others waiting
for longer than was proved. Once that is a mishap. A task that does so job after job would take the
device from them for good. So what others wait beyond the charge is *owed*; it is paid off as time
passes, by the part of the device's time that admission charged the task. While a task owes more
than one job may cost, its next one is throttled, also where nobody else wants the device then: a
job that keeps the device to its end would cost whoever comes after it.

Theorem (P13, leaky bucket). Let a task's jobs cost others at most c each, and let `free` be what it
may owe. In any window of length w, it costs them at most free + c + share w. For a job begins only
while no more than `free` is owed, so that no more than free + c is ever owed; what is owed rises by
what others wait and falls by no more than share w in the window, and it is never less than nothing.

Nothing here knows clocks, sessions or leases. Times in nanoseconds of one clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST_SHARE = 0.01
"""Of a task that was charged next to nothing: what it owes is paid off some time."""


@dataclass
class Excess:
    """The debt of one task."""

    _owed_ns: float = 0.0
    _at_ns: int = 0
    """When that was so."""

    def costs(self, now_ns: int, cost_ns: int, share: float) -> None:
        """A job is over that kept others waiting for so long beyond its charge."""
        self._owed_ns = self._owes_ns(now_ns, share) + cost_ns
        self._at_ns = now_ns

    def throttled_ns(self, now_ns: int, free_ns: int, share: float) -> int:
        """How long the task's next job is held back, by what it may owe; 0: not at all."""
        too_much_ns = self._owes_ns(now_ns, share) - free_ns
        return max(0, math.ceil(too_much_ns / max(share, _LEAST_SHARE)))

    def _owes_ns(self, now_ns: int, share: float) -> float:
        paid_ns = (now_ns - self._at_ns) * max(share, _LEAST_SHARE)
        return max(0.0, self._owed_ns - paid_ns)
