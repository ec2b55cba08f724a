"""When jobs arrive: strictly periodic, or set by an adversary that keeps to the sporadic model.

The adversary may choose every first release, add to any separation, and hold jobs back to release
them at the worst moment it can see: an instant after another job began its last or longest layer.
Randomness comes from outside (`draw`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_INSTANT_S = 1e-9


def never() -> float:
    """A draw that changes nothing."""
    return 1.0


@dataclass
class Pattern:
    """First releases, and how far later ones may stray from a period after the one before."""

    first_s: Sequence[float]
    until_s: float
    sporadic: float = 0.0
    """Largest extra separation, as a share of the period; drawn every other time."""
    adaptive: bool = False
    """Hold jobs back until the worst moment in sight."""
    delayed: int | None = None
    """This task's second job comes an instant late, so that it keeps off the others' grid."""


class Arrivals:
    """The `Releases` of a simulation: a pattern played for tasks of these periods."""

    def __init__(
        self,
        periods_s: Sequence[float],
        pattern: Pattern,
        draw: Callable[[], float] = never,
    ) -> None:
        self._periods_s = periods_s
        self._pattern = pattern
        self._draw = draw
        self._due = [when if when < pattern.until_s else math.inf for when in pattern.first_s]
        self._legal = list(pattern.first_s)
        self._late_second = pattern.delayed

    def next_s(self) -> float:
        """The next arrival, or infinity."""
        return min(self._due, default=math.inf)

    def take(self, now_s: float) -> Iterator[int]:
        """The tasks of which a job arrives by now; each has its next arrival set."""
        for task, period_s in enumerate(self._periods_s):
            while self._due[task] <= now_s:
                legal = self._due[task] + period_s
                if self._late_second == task:
                    legal += 2 * _INSTANT_S
                    self._late_second = None
                due = legal
                if self._pattern.sporadic and self._draw() < 0.5:
                    due += self._pattern.sporadic * period_s * self._draw()
                self._legal[task] = legal
                self._due[task] = due if due < self._pattern.until_s else math.inf
                yield task

    def provoked(self, now_s: float, by: int) -> None:
        """Release what may be released, an instant after the device was taken for long."""
        if not self._pattern.adaptive:
            return
        for task, legal in enumerate(self._legal):
            held_back = legal <= now_s < self._due[task] < math.inf
            if task != by and held_back and self._draw() < 0.7:
                self._due[task] = now_s + _INSTANT_S
