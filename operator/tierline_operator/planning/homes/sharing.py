"""How much of each task lies in which of two or three tiers, where the fast ones are scarce.

A task of N extents, n of them in the slowest tier, m in the middle one and f in the fastest, of
which one takes t_n, t_m and t_f seconds, takes a job

    E = max(C, N t_f, n t_n, m t_m)      where links run at the same time (extents interleaved),
    E = max(C, n t_n + m t_m + f t_f)    where they take turns.

It gains nothing below its *floor*, max(C, N t_f): whatever of it lies in slow tiers then is free.
Looked for are the least sum of w E, w = 1 / period, and E within every deadline. The rule: all
begin in the slowest tier; then each E is lowered to its deadline; then, the largest w first, to its
floor. That is the order of gain, for above the floor each extent that leaves the slowest tier gains
w t_n, whichever the task.

What an E takes of the two others is left open until the end, for a task may have any m with
least <= m <= most there. With q = N - n, a set of E is possible if and only if

    sum least <= middle tier,    sum (q - most) <= fastest tier,    sum q <= both,

so each step looks at three sums. That is what makes the rule good where two tiers are scarce: an
extent of the middle tier that one task cannot use any more lets another one leave the fastest.

What it is not: a proof. Its E knows neither the ring nor which extents are resident; pipeline.py
does. How far it is from the optimum: docs/benchmarks/placement.md. Sizes are extents, times are
seconds. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_ROUNDING: Final = 1e-9
_HALVINGS: Final = 40
_FAST, _MIDDLE, _SLOW = range(3)
MOST_TIERS: Final = 3
"""An agent has no more: dram, pmem, nvme."""


@dataclass(frozen=True)
class Lot:
    """Extents any of which may lie where the others may."""

    extents: int
    tiers: tuple[int, ...]
    """Those that may hold it, by number, the preferred one first."""
    copy_s: tuple[float, ...]
    """Time that one extent adds to a job from each tier; 0 where it never streams."""
    compute_s: float = 0.0
    limit_s: float = math.inf
    """By when its jobs are to be done."""
    weight: float = 0.0
    """Jobs a second."""

    @property
    def floor_s(self) -> float:
        """Time of a job with all of it in the fastest of its tiers."""
        return max(self.compute_s, self.extents * min(self.copy_s[tier] for tier in self.tiers))

    def job_s(self, shares: Sequence[int], *, in_turn: bool) -> float:
        """Time of a job with so much in each tier."""
        times = [count * one_s for count, one_s in zip(shares, self.copy_s, strict=True)]
        return max(self.floor_s, sum(times) if in_turn else max(times))


def share(lots: Sequence[Lot], room: Sequence[int], *, in_turn: bool) -> list[list[int]] | None:
    """Extents of each lot in each tier; None if the rule finds no place for all of them.

    `room` is that of each tier in extents: two tiers or three, the fastest first. `in_turn`: links
    copy one after the other. What nothing is gained by lies in the preferred tiers, in the order
    of the lots.
    """
    if not 2 <= len(room) <= MOST_TIERS:
        raise ValueError(f"cannot share {len(room)} tiers: the rule is for two or three")
    places = (_FAST, _MIDDLE, _SLOW) if len(room) == MOST_TIERS else (_FAST, _SLOW)
    rooms = [0, 0, 0]
    for place, extents in zip(places, room, strict=True):
        rooms[place] = max(0, extents)
    sharing = _Sharing([_Flexible(lot, places, in_turn=in_turn) for lot in lots], rooms)
    if not sharing.possible():
        return None
    for at, lot in enumerate(lots):
        sharing.lower(at, lot.limit_s)
    for at in sorted(range(len(lots)), key=lambda at: -lots[at].weight):
        sharing.lower(at, 0.0)
    filled = sharing.filled()
    return None if filled is None else [[shares[place] for place in places] for shares in filled]


@dataclass(frozen=True)
class _State:
    """A state of the sharing: the extents that some E has of a lot."""

    slow: int
    quick: int
    """Of the two others."""
    least: int
    """Of the middle tier."""
    most: int


class _Flexible:
    """A lot, and what it takes for each E."""

    def __init__(self, lot: Lot, places: Sequence[int], *, in_turn: bool) -> None:
        self.extents, self.floor_s, self._in_turn = lot.extents, lot.floor_s, in_turn
        self.prefers = [places[tier] for tier in lot.tiers]
        self._copy_s = [0.0, 0.0, 0.0]
        for place, seconds in zip(places, lot.copy_s, strict=True):
            self._copy_s[place] = seconds
        self._quickest = min((p for p in self.prefers if p != _SLOW), default=_SLOW)
        self._slowest = max(self.prefers)
        self.step_s = self._copy_s[self._slowest]
        self.start_s = max(self.floor_s, self.extents * self.step_s)

    def at(self, job_s: float) -> _State | None:
        """None: no shares of its tiers make a job as short as that."""
        count, slow_s = self.extents, self._copy_s[_SLOW]
        if self._slowest != _SLOW:
            slow = 0
        elif self._in_turn:
            quick_s = self._copy_s[self._quickest]
            slow = _many(count, job_s - count * quick_s, slow_s - quick_s)
        else:
            slow = _many(count, job_s, slow_s)
        quick = count - slow
        if quick and self._quickest == _SLOW:
            return None
        most = self._most_in_the_middle(slow, job_s) if _MIDDLE in self.prefers else 0
        least = 0 if _FAST in self.prefers else quick
        return _State(slow, quick, least, most) if least <= most else None

    def _most_in_the_middle(self, slow: int, job_s: float) -> int:
        quick, (fast_s, middle_s, slow_s) = self.extents - slow, self._copy_s
        if not self._in_turn:
            return _many(quick, job_s, middle_s)
        if self._quickest == _MIDDLE:
            return quick
        return _many(quick, job_s - slow * slow_s - quick * fast_s, middle_s - fast_s)

    def room_in_the_middle(self, job_s: float, held: int) -> int:
        """How many more extents may move there from the slow tier."""
        return self.extents if self._in_turn else _many(self.extents, job_s, self._copy_s[1]) - held


def _many(most: int, seconds: float, one_s: float) -> int:
    """So many extents take no longer than that."""
    if one_s <= 0:
        return most
    return max(0, min(most, math.floor(seconds / one_s + _ROUNDING)))


class _Sharing:
    def __init__(self, lots: Sequence[_Flexible], room: Sequence[int]) -> None:
        self._lots, self._room = lots, list(room)
        self._job_s = [lot.start_s for lot in lots]
        states = [lot.at(lot.start_s) for lot in lots]
        self._states = [state for state in states if state is not None]
        self._fast = sum(state.quick - state.most for state in self._states)
        self._middle = sum(state.least for state in self._states)
        self._quick = sum(state.quick for state in self._states)

    def possible(self, fast: int = 0, middle: int = 0, quick: int = 0) -> bool:
        """Whether the three sums hold when so much is added."""
        return (
            self._fast + fast <= self._room[_FAST]
            and self._middle + middle <= self._room[_MIDDLE]
            and self._quick + quick <= self._room[_FAST] + self._room[_MIDDLE]
        )

    def lower(self, at: int, job_s: float) -> None:
        """Make a job of a lot as short as that and its floor allow, if there is room."""
        lot = self._lots[at]
        low, high = max(job_s, lot.floor_s), self._job_s[at]
        if low >= high or self._set(at, low):
            return
        step_s = lot.step_s
        if not self._set(at, max(low, (math.ceil(high / step_s - _ROUNDING) - 1) * step_s)):
            return
        high = self._job_s[at]
        for _ in range(_HALVINGS):
            if high - low < step_s / 2:
                return
            middle = (low + high) / 2
            low, high = (low, middle) if self._set(at, middle) else (middle, high)

    def _set(self, at: int, job_s: float) -> bool:
        new, old = self._lots[at].at(job_s), self._states[at]
        if new is None:
            return False
        fast = (new.quick - new.most) - (old.quick - old.most)
        middle, quick = new.least - old.least, new.quick - old.quick
        if not self.possible(fast, middle, quick):
            return False
        self._states[at], self._job_s[at] = new, job_s
        self._fast, self._middle = self._fast + fast, self._middle + middle
        self._quick += quick
        return True

    def filled(self) -> list[list[int]] | None:
        """Extents by lot in the fast, the middle and the slow tier."""
        shares = [[state.quick - state.least, state.least, state.slow] for state in self._states]
        left = [
            room - sum(column) for room, column in zip(self._room, _columns(shares), strict=True)
        ]
        self._leave_the_fastest(shares, left)
        for at, lot in enumerate(self._lots):
            for place in lot.prefers[: _until(lot.prefers, _SLOW)]:
                more = min(shares[at][_SLOW], left[place])
                if place == _MIDDLE:
                    more = min(more, lot.room_in_the_middle(self._job_s[at], shares[at][_MIDDLE]))
                _move(shares[at], left, _SLOW, place, more)
        for at in reversed(range(len(shares))):  # the slow tier may be the one that is too small
            for place in self._lots[at].prefers:
                _move(shares[at], left, _SLOW, place, min(-left[_SLOW], left[place]))
        return shares if min(left) >= 0 else None

    def _leave_the_fastest(self, shares: list[list[int]], left: list[int]) -> None:
        """Move to the middle tier the lots that prefer it, and then as many as have to."""
        for at, lot in enumerate(self._lots):
            if _until(lot.prefers, _MIDDLE) < _until(lot.prefers, _FAST):
                more = min(self._states[at].most - shares[at][_MIDDLE], left[_MIDDLE])
                _move(shares[at], left, _FAST, _MIDDLE, more)
        for at in reversed(range(len(shares))):
            more = min(self._states[at].most - shares[at][_MIDDLE], left[_MIDDLE], -left[_FAST])
            _move(shares[at], left, _FAST, _MIDDLE, more)


def _move(shares: list[int], left: list[int], source: int, target: int, count: int) -> None:
    count = min(count, shares[source])
    if count <= 0 or source == target:
        return
    shares[source] -= count
    shares[target] += count
    left[source] += count
    left[target] -= count


def _columns(shares: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    return [tuple(one[place] for one in shares) for place in range(MOST_TIERS)]


def _until(places: Sequence[int], place: int) -> int:
    """How many come before it."""
    return places.index(place) if place in places else len(places)
