"""How fast a link is, from when its transfers began and ended.

Transfers overlap, so a link's bandwidth is bytes over *busy* time: the time in which at least one
transfer was under way. Busy time and bytes are summed over windows of a few transfers; a window's
quotient is one sample. Kept are a moving average (EWMA) and the worst of the recent samples.

A link is *watched* against what plans were made with: its worst rate at the start, and the time of
a transfer of next to nothing. Its busy time is cut into spans of `SPAN_NS`, long enough that no
hiccup of the machine fills one. A span in which its bytes took longer than in plans, which count on
the bandwidth over `margin`, is slow, and counted. The link has *drifted* after `DRIFT_SPANS` slow
ones in a row, and has recovered after as many that are not; meanwhile it offers the slowest that it
was seen at.

It reads no clock: all moments are given, in nanoseconds. Not thread-safe: the link locks.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

WINDOW_TRANSFERS = 4
SPAN_NS = 200_000_000
DRIFT_SPANS = 4
_AVERAGE_WEIGHT = 0.2
_RECENT_WINDOWS = 64
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class LinkRate:
    """The rate of a link: planned with, or measured."""

    bandwidth_bytes_per_s: float
    """Median over windows."""
    worst_bytes_per_s: float
    """Slowest window."""
    overhead_s: float
    """Time that each transfer in a row takes in addition to its bytes."""


class LinkMeter:
    """Counts one link."""

    def __init__(self) -> None:
        self.planned: LinkRate | None = None
        self.margin = 1.0
        """Plans count on the planned bandwidth over this."""
        self.bytes_total = 0
        self.transfers_total = 0
        self.errors_total = 0
        self.average_bytes_per_s: float | None = None
        self.drifted = False
        self.slow_spans_total = 0
        self._busy_ns = 0
        self._in_flight = 0
        self._busy_since_ns = 0
        self._window_bytes = 0
        self._window_transfers = 0
        self._window_began_busy_ns = 0
        self._recent: deque[float] = deque(maxlen=_RECENT_WINDOWS)
        self._span = _Span()
        self._last_ns_per_byte = 0.0
        """Of the last transfer that a device timed."""
        self._turning = 0
        """Spans in a row that speak against `drifted`."""
        self._lowest = 1.0
        """Least share of the planned speed since the link began to be slow."""

    def began(self, now_ns: int) -> None:
        """A transfer began."""
        if self._in_flight == 0:
            self._busy_since_ns = now_ns
        self._in_flight += 1

    def ended(self, now_ns: int, size_bytes: int | None) -> None:
        """A transfer of `size_bytes` ended; None if it failed."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._busy_ns += now_ns - self._busy_since_ns
        if size_bytes is None:
            self.errors_total += 1
            return
        self._count(size_bytes, now_ns)

    def moved(self, size_bytes: int, duration_ns: int | None) -> None:
        """A device moved so much by itself. Such transfers run one after another.

        One that was not timed is taken to be as fast as the last one that was; the first one is.
        """
        if duration_ns is None:
            duration_ns = int(size_bytes * self._last_ns_per_byte)
        elif size_bytes:
            self._last_ns_per_byte = duration_ns / size_bytes
        self._busy_ns += duration_ns
        self._count(size_bytes, self._busy_since_ns)

    def _count(self, size_bytes: int, now_ns: int) -> None:
        self.transfers_total += 1
        self.bytes_total += size_bytes
        self._window_bytes += size_bytes
        self._window_transfers += 1
        self._span.size_bytes += size_bytes
        self._span.transfers += 1
        if self._window_transfers >= WINDOW_TRANSFERS:
            self._end_window(now_ns)

    def busy_ns(self, now_ns: int) -> int:
        """Time with at least one transfer under way, up to now."""
        return self._busy_ns + (now_ns - self._busy_since_ns if self._in_flight else 0)

    def restart(self) -> None:
        """Forget the samples (not the totals), between two measurements."""
        self._recent.clear()
        self.average_bytes_per_s = None
        self._window_bytes = self._window_transfers = 0
        self._window_began_busy_ns = self._busy_ns
        self._span.restart(self._busy_ns)

    @property
    def offered_bytes_per_s(self) -> float | None:
        """The rate that plans can count on now; None before anything was measured."""
        if self.planned is None:
            return None
        return self.planned.worst_bytes_per_s * (self._lowest if self.drifted else 1.0)

    @property
    def worst_bytes_per_s(self) -> float | None:
        """Slowest of the recent windows."""
        return min(self._recent, default=None)

    @property
    def median_bytes_per_s(self) -> float | None:
        """Median of the recent windows."""
        return statistics.median(self._recent) if self._recent else None

    def _end_window(self, now_ns: int) -> None:
        busy_ns = self.busy_ns(now_ns)
        elapsed_ns = busy_ns - self._window_began_busy_ns
        if elapsed_ns > 0:
            self._sample(self._window_bytes * _NS_PER_S / elapsed_ns)
        self._window_bytes = self._window_transfers = 0
        self._window_began_busy_ns = busy_ns
        if busy_ns - self._span.began_busy_ns >= SPAN_NS:
            self._judge(busy_ns)

    def _judge(self, busy_ns: int) -> None:
        """The busy time of a span is over."""
        planned, span = self.planned, self._span
        if planned is not None:
            took_s = (busy_ns - span.began_busy_ns) / _NS_PER_S
            share = span.planned_s(planned) / took_s
            slow = took_s > span.planned_s(planned, self.margin)
            self.slow_spans_total += slow
            self._turning = self._turning + 1 if slow != self.drifted else 0
            if slow:
                fresh = not self.drifted and self._turning == 1
                self._lowest = share if fresh else min(self._lowest, share)
            if self._turning == DRIFT_SPANS:
                self.drifted, self._turning = slow, 0
        span.restart(busy_ns)

    def _sample(self, bytes_per_s: float) -> None:
        self._recent.append(bytes_per_s)
        if self.average_bytes_per_s is None:
            self.average_bytes_per_s = bytes_per_s
        else:
            change = bytes_per_s - self.average_bytes_per_s
            self.average_bytes_per_s += _AVERAGE_WEIGHT * change


@dataclass
class _Span:
    """The work of a link in a stretch of its busy time."""

    began_busy_ns: int = 0
    size_bytes: int = 0
    transfers: int = 0

    def planned_s(self, rate: LinkRate, margin: float = 1.0) -> float:
        """How long that should have taken at worst, or may take by plans with that margin."""
        return self.size_bytes * margin / rate.worst_bytes_per_s + self.transfers * rate.overhead_s

    def restart(self, busy_ns: int) -> None:
        self.began_busy_ns, self.size_bytes, self.transfers = busy_ns, 0, 0
