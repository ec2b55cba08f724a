"""A bound on every choice of resident sets: a necessary condition, asked before any search.

Theorem. Let every task i choose an option o with memory m_io, cost c_io and section s_io; where
jobs may yield there are two of each, one with what is parked then. Gamma is left out. A set that
the demand test accepts keeps, for every t and every j with D_j > t,

    sum n_i(t) c_i + s_j <= t,        sum m_i <= limit,

and so the sum of any such windows, each with a weight w >= 0. So if the least value of

    sum over windows of w (sum n_i(t) c_i + s_j - t)

over all choices within the limit, mixtures of options included, is above 0, no choice is accepted.
For given weights that is a fractional knapsack, which is solved by giving memory where a task's
value falls most per extent (Dantzig, 1957). Weights are looked for window by window: one that is
late in the best choice so far gets the share that raises the value most. Any weights are a proof of
what they refuse; where none are found nothing is said.

The long run is a window, too: sum c_i / T_i <= 1. What is left out (gamma, parked, Soft tasks as
background) only makes a choice worse, so what is refused here every search refuses, whichever
yield. Rounding is on the safe side: refused is only what lacks more than a millionth of its
windows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tierline_operator.admission.demand import DemandTest

Floats = npt.NDArray[np.float64]

MISSING: Final = 1e-6
"""A smaller share of the windows may be rounding."""
_MOST_WINDOWS: Final = 1_500
_ROUNDS: Final = 24
_HALVINGS: Final = 10
Window = tuple[int, int]
"""Which one, and the task that blocks in it; -1: one without a deadline, or none."""


@dataclass(frozen=True)
class Choice:
    """The least that an option of a task may be charged: extents, and nanoseconds."""

    extents: int
    cost_ns: int
    section_ns: int


class Bound:
    """The condition for the options of some tasks."""

    def __init__(
        self, test: DemandTest, choices: Sequence[Sequence[Choice]], due: Sequence[int]
    ) -> None:
        """`due`: which of the tasks have a deadline, in the order of the test."""
        others = set(range(len(choices))) - set(due)
        self._taken_by_others = sum(min(c.extents for c in choices[i]) for i in others)
        self._background = max((min(c.section_ns for c in choices[i]) for i in others), default=0)
        windows = test.windows(_MOST_WINDOWS) if due else np.empty(0, np.int64)
        lengths = windows.astype(np.float64)
        # Shares of the window, so that long ones and short ones weigh alike; last is the long run.
        self._shares: Floats = np.vstack(
            [test.jobs_due_in(windows) / lengths[:, None], 1 / np.array(test.periods, np.float64)]
        )
        self._lengths: Floats = np.append(lengths, np.inf)
        deadlines = np.array(test.deadlines)
        self._by_deadline = np.argsort(deadlines, kind="stable")
        self._later = np.searchsorted(deadlines[self._by_deadline], windows, side="right")
        self._choices = self._bearable([choices[index] for index in due], test, windows)
        self._hopeless = not all(self._choices)
        self._segments = _Segments.of([_hull(c, 1.0, 0.0) for c in self._choices if c])
        self._said: dict[int, bool] = {}

    def _bearable(
        self, choices: Sequence[Sequence[Choice]], test: DemandTest, windows: npt.NDArray[np.int64]
    ) -> list[list[Choice]]:
        """Those by which nobody waits for too long, however fast all others are."""
        left = [list(options) for options in choices]
        before = np.searchsorted(windows, np.array(test.deadlines), side="left")
        while all(left):
            least = np.array([min(c.cost_ns for c in options) for options in left], np.float64)
            spare = (1 - self._shares[:-1] @ least) * self._lengths[:-1]
            longest = np.append(np.inf, np.minimum.accumulate(spare))[before]
            longest += MISSING * self._lengths[before]
            kept = [
                [c for c in options if c.section_ns <= most]
                for options, most in zip(left, longest, strict=True)
            ]
            if kept == left:
                break
            left = kept
        return left

    def refuses(self, limit: int) -> bool:
        """Whether no choice that takes up to `limit` extents can be accepted."""
        if limit not in self._said:
            self._said[limit] = self._refuses(limit)
        return self._said[limit]

    def _refuses(self, limit: int) -> bool:
        if self._hopeless or not self._choices:
            return self._hopeless
        room = limit - self._taken_by_others - self._segments.least
        if room < 0:
            return True
        mixture = self._cheapest({}, room)
        weights: dict[Window, float] = {}
        for _ in range(_ROUNDS):
            late, window = self._latest(mixture)
            if late <= MISSING:
                return False
            weights, mixture = self._weighed(weights, window, room)
            if mixture.value > MISSING:
                return True
        return False

    def _weighed(
        self, weights: dict[Window, float], window: Window, room: float
    ) -> tuple[dict[Window, float], _Mixture]:
        """The best weights between those and that window alone, by bisection.

        The value is concave there, and falls where the cheapest mixture has the window less late
        than the others.
        """
        low, high = 0.0, 1.0
        best = ({window: 1.0}, self._cheapest({window: 1.0}, room))
        if not weights:
            return best
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            mixed = {other: weight * (1 - share) for other, weight in weights.items()}
            mixed[window] = mixed.get(window, 0.0) + share
            mixture = self._cheapest(mixed, room)
            if mixture.value > best[1].value:
                best = mixed, mixture
            if mixture.value > MISSING:
                break
            others = sum(weight * self._late(other, mixture) for other, weight in weights.items())
            low, high = (share, high) if self._late(window, mixture) > others else (low, share)
        return best

    def _cheapest(self, weights: dict[Window, float], room: float) -> _Mixture:
        """The mixture with the least value under these weights."""
        count = len(self._choices)
        per_cost, per_section, value = np.zeros(count), np.zeros(count), 0.0
        for (at, blocker), weight in weights.items():
            per_cost += weight * self._shares[at]
            value -= weight
            if blocker >= 0:
                per_section[blocker] += weight / self._lengths[at]
            else:
                value += weight * self._background / self._lengths[at]
        blockers = np.flatnonzero(per_section)
        segments = self._segments.with_hulls(
            {
                int(i): _hull(self._choices[i], float(per_cost[i]), float(per_section[i]))
                for i in blockers
            }
        )
        costs, sections = segments.cheapest(per_cost, per_section, room)
        value += float(per_cost @ costs + per_section @ sections)
        return _Mixture(value, costs, sections)

    def _latest(self, mixture: _Mixture) -> tuple[float, Window]:
        """The window that misses the largest share of itself, and the blocker in it."""
        ordered = mixture.sections[self._by_deadline]
        longest = np.append(np.maximum.accumulate(ordered[::-1])[::-1], 0.0)
        blocked = np.append(np.maximum(longest[self._later], self._background), 0.0)
        late = self._shares @ mixture.costs + blocked / self._lengths - 1
        at = int(np.argmax(late))
        if at == len(self._later) or blocked[at] <= self._background:
            return float(late[at]), (at, -1)
        first = self._later[at]
        return float(late[at]), (at, int(self._by_deadline[first + np.argmax(ordered[first:])]))

    def _late(self, window: Window, mixture: _Mixture) -> float:
        at, blocker = window
        blocked = self._background if blocker < 0 else mixture.sections[blocker]
        return float(self._shares[at] @ mixture.costs + blocked / self._lengths[at] - 1)


@dataclass(frozen=True)
class _Mixture:
    """A choice of options, some in part, in nanoseconds."""

    value: float
    """The weighed share by which windows are missed."""
    costs: Floats
    sections: Floats


@dataclass(frozen=True)
class _Segments:
    """Hulls of all tasks, laid end to end: a segment leads from one corner to the next."""

    owner: npt.NDArray[np.int64]
    taken: Floats
    cost: Floats
    """Its change, negative where it saves."""
    section: Floats
    first_cost: Floats
    first_section: Floats
    least: int
    """Extents of all first corners."""

    @classmethod
    def of(cls, hulls: Sequence[Sequence[Choice]]) -> _Segments:
        steps = [(i, a, b) for i, hull in enumerate(hulls) for a, b in pairwise(hull)]
        return cls(
            np.array([i for i, _, _ in steps], np.int64),
            np.array([b.extents - a.extents for _, a, b in steps], np.float64),
            np.array([b.cost_ns - a.cost_ns for _, a, b in steps], np.float64),
            np.array([b.section_ns - a.section_ns for _, a, b in steps], np.float64),
            np.array([hull[0].cost_ns for hull in hulls], np.float64),
            np.array([hull[0].section_ns for hull in hulls], np.float64),
            sum(hull[0].extents for hull in hulls),
        )

    def with_hulls(self, hulls: dict[int, Sequence[Choice]]) -> _Segments:
        """The same with other hulls for some tasks."""
        if not hulls:
            return self
        kept = ~np.isin(self.owner, list(hulls))
        more = _Segments.of(list(hulls.values()))
        first_cost, first_section = self.first_cost.copy(), self.first_section.copy()
        first_cost[list(hulls)], first_section[list(hulls)] = more.first_cost, more.first_section
        return _Segments(
            np.append(self.owner[kept], np.array(list(hulls), np.int64)[more.owner]),
            np.append(self.taken[kept], more.taken),
            np.append(self.cost[kept], more.cost),
            np.append(self.section[kept], more.section),
            first_cost,
            first_section,
            self.least,
        )

    def cheapest(self, per_cost: Floats, per_section: Floats, room: float) -> tuple[Floats, Floats]:
        """Costs and sections with `room` extents used where they save most."""
        saved = -(per_cost[self.owner] * self.cost + per_section[self.owner] * self.section)
        order = np.argsort(-saved / self.taken, kind="stable")
        order = order[saved[order] > 0]
        used = np.cumsum(self.taken[order])
        part = np.clip((room - (used - self.taken[order])) / self.taken[order], 0.0, 1.0)
        costs, sections = self.first_cost.copy(), self.first_section.copy()
        np.add.at(costs, self.owner[order], part * self.cost[order])
        np.add.at(sections, self.owner[order], part * self.section[order])
        return costs, sections


def _hull(options: Collection[Choice], per_cost: float, per_section: float) -> list[Choice]:
    """Corners of the lower hull of value over memory, as far as it falls."""

    def value(choice: Choice) -> float:
        return per_cost * choice.cost_ns + per_section * choice.section_ns

    corners: list[Choice] = []
    for choice in sorted(options, key=lambda c: (c.extents, value(c))):
        if corners and value(choice) >= value(corners[-1]):
            continue
        while len(corners) > 1:
            before, last = corners[-2:]
            rise = (value(last) - value(before)) * (choice.extents - before.extents)
            if rise < (value(choice) - value(before)) * (last.extents - before.extents):
                break
            corners.pop()
        corners.append(choice)
    return corners
