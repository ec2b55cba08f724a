"""A device over time: jobs released by an adversary, run one at a time by earliest deadline.

Ties go to the job that arrived first. Tasks without a deadline run only when no other job waits.
The durations of jobs are those that engines.py simulated, in full or shortened.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

TOLERANCE_S = 1e-9
"""Float noise; costs were rounded up to whole nanoseconds, so it hides no miss."""


@dataclass(frozen=True)
class SimTask:
    """One task: simulated job durations in full, and shortened ones to draw from."""

    period_s: float
    deadline_s: float | None
    full_s: float
    shortened_s: Sequence[float] = ()


@dataclass
class Releases:
    """When jobs arrive. `first_s` per task; later ones follow a period (or more) after."""

    first_s: list[float]
    sporadic: float = 0.0
    """Largest random extra separation, as a share of the period."""
    adaptive: bool = False
    """Hold jobs back and release them an instant after another job was dispatched."""
    delayed: int | None = None
    """This task's second job comes an instant late, so that it keeps off the others' grid."""


@dataclass
class Result:
    """What was seen."""

    jobs: int = 0
    misses: int = 0
    latest_s: float = -math.inf
    """Largest lateness (negative: the least slack)."""
    worst_response_s: list[float] = field(default_factory=list)


def simulate(
    tasks: Sequence[SimTask],
    releases: Releases,
    *,
    until_s: float,
    shorten: bool = False,
    seed: int = 0,
) -> Result:
    """Run all jobs released before `until_s` to their end."""
    run = _Run(tasks, releases, until_s, np.random.default_rng(seed))
    while run.dispatch(shorten=shorten):
        pass
    return run.result


class _Run:
    def __init__(
        self,
        tasks: Sequence[SimTask],
        releases: Releases,
        until_s: float,
        rng: np.random.Generator,
    ) -> None:
        self.tasks = tasks
        self.releases = releases
        self.until_s = until_s
        self.draw = rng.random
        self.result = Result(worst_response_s=[0.0] * len(tasks))
        self.now = 0.0
        self.due = list(releases.first_s)
        self.legal = list(self.due)
        self.late_second = releases.delayed
        self.pending: list[tuple[float, float, int]] = []

    def dispatch(self, *, shorten: bool) -> bool:
        """Run the next job to its end; False when none is left."""
        self._arrive()
        if not self.pending:
            self.now = min(self.due)
            if self.now >= self.until_s:
                return False
            self._arrive()
        limit, arrived, index = heapq.heappop(self.pending)
        if self.releases.adaptive:
            self._provoke(index)
        task, result = self.tasks[index], self.result
        if shorten and task.shortened_s:
            self.now += task.shortened_s[int(self.draw() * len(task.shortened_s))]
        else:
            self.now += task.full_s
        result.jobs += 1
        result.worst_response_s[index] = max(result.worst_response_s[index], self.now - arrived)
        if limit < math.inf:
            result.latest_s = max(result.latest_s, self.now - limit)
            result.misses += self.now > limit + TOLERANCE_S
        return True

    def _arrive(self) -> None:
        for index, task in enumerate(self.tasks):
            while self.due[index] <= self.now and self.due[index] < self.until_s:
                arrived = self.due[index]
                limit = math.inf if task.deadline_s is None else arrived + task.deadline_s
                heapq.heappush(self.pending, (limit, arrived, index))
                self.legal[index] = arrived + task.period_s
                if self.late_second == index:
                    self.legal[index] += 2e-9
                    self.late_second = None
                self.due[index] = self.legal[index]
                if self.releases.sporadic and self.draw() < 0.5:
                    self.due[index] += self.releases.sporadic * task.period_s * self.draw()

    def _provoke(self, dispatched: int) -> None:
        """Release what may be released, an instant after the device was given away."""
        for other, legal in enumerate(self.legal):
            held_back = legal <= self.now < self.due[other]
            if other != dispatched and held_back and self.draw() < 0.7:
                self.due[other] = self.now + 1e-9
