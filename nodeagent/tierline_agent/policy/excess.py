"""The excess of a task over what admission charged for it: it costs others no more than its share.

A job may take longer than its plan, up to a limit (`stuck`), and one that does keeps others waiting
for longer than was proved. Once that is a mishap. A task that does so job after job would take the
device from them for good. So what others wait beyond the charge is *owed*; it is paid off as time
passes, by the task's share of the device's time (`share_of`). While a task owes more
than one job may cost, its next one is throttled, also where nobody else wants the device then: a
job that keeps the device to its end would cost whoever comes after it.

Warm-up jobs may cost more at once than others, and a program that took long to start is not
throttled when it runs: they have an account of their own. The share pays for both, and what other
jobs owe is paid first.

A task is who it is by its key, however often its pods and claims come and go: a debt outlives them,
and ends when it is paid. Of a device there are never many: each was taken from its time, and is
paid within a hundred times as long. One task of two pods has one debt. An agent that starts knows
of none; no task can start one.

Theorem (P13, leaky bucket). Let a task's jobs of either kind cost others at most c each, and let
`free` be what that kind may owe. In any window of length w, both cost them together at most the sum
of free + c over the kinds, and share w. For a job begins only while its kind owes no more than
`free`, so that no kind ever owes more than free + c; what both owe rises by what others wait and
falls by no more than share w in the window, and it is never less than nothing. (The share is what
it was when the task began or ended a job last: no later one pays for the time before.)

Nothing here knows clocks, sessions or leases. Times in nanoseconds of one clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass

_LEAST_SHARE = 0.01
"""Where admission charged the whole device: what is owed is paid off some time."""


def share_of(charged: float, together: Collection[float]) -> float:
    """The part of a device's time that pays for what a task owes.

    It is what admission charged the task, or its part of what it charged nobody, if that is more.
    `together` is what all tasks of the device were charged: if that is the whole of it at most,
    then so are all their shares together, but for the least.
    """
    left = max(0.0, 1.0 - sum(together))
    return max(charged, left / max(1, len(together)), _LEAST_SHARE)


@dataclass
class Excess:
    """The debt of one task."""

    _jobs_ns: float = 0.0
    _warmups_ns: float = 0.0
    _at_ns: int = 0
    """When that was so."""
    _share: float = 0.0
    """What pays since then."""

    def costs(self, now_ns: int, cost_ns: int, share: float, *, warmup: bool) -> None:
        """A job is over that kept others waiting for so long beyond its charge."""
        self._pay(now_ns, share)
        if warmup:
            self._warmups_ns += cost_ns
        else:
            self._jobs_ns += cost_ns

    def throttled_ns(self, now_ns: int, free_ns: int, share: float, *, warmup: bool) -> int:
        """How long the task's next job is held back, by what its kind may owe; 0: not at all."""
        self._pay(now_ns, share)
        too_much_ns = (self._warmups_ns if warmup else self._jobs_ns) - free_ns
        if too_much_ns <= 0:
            return 0
        paid_first_ns = self._jobs_ns if warmup else 0
        return math.ceil((paid_first_ns + too_much_ns) / self._share)

    def is_paid(self, now_ns: int) -> bool:
        """Whether nothing is owed any more."""
        return self._jobs_ns + self._warmups_ns <= (now_ns - self._at_ns) * self._share

    def _pay(self, now_ns: int, share: float) -> None:
        pays_ns = (now_ns - self._at_ns) * self._share
        for_jobs_ns = min(self._jobs_ns, pays_ns)
        self._jobs_ns -= for_jobs_ns
        self._warmups_ns -= min(self._warmups_ns, pays_ns - for_jobs_ns)
        self._at_ns, self._share = now_ns, share


class Debts:
    """What the tasks of a device owe, by their keys, whether they are there or not."""

    def __init__(self) -> None:
        self._owing: dict[Hashable, Excess] = {}

    def __len__(self) -> int:
        return len(self._owing)

    def costs(
        self, task: Hashable, now_ns: int, cost_ns: int, share: float, *, warmup: bool
    ) -> None:
        """A job of this task is over; see `Excess`."""
        self._owing = {one: owed for one, owed in self._owing.items() if not owed.is_paid(now_ns)}
        excess = self._owing.setdefault(task, Excess())
        excess.costs(now_ns, cost_ns, share, warmup=warmup)

    def of(self, task: Hashable) -> Excess | None:
        """What this task owes; None if nothing."""
        return self._owing.get(task)
