"""Observations of a pod, summed up from job records.

Pure. It goes on from what was reported before, so that a restart of the agent loses no job that was
reported; percentiles and the time of over-runs are those of the last jobs. One job that over-ran
may have been held up by something that has nothing to do with it: what two of them took is told.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tierline_api.objects.memtask_status import Observed

_WINDOW: Final = 1024
"""So many jobs give the percentiles, and the time of over-runs."""


class Observation:
    """The jobs of one pod; if it trains its steps: a job that does nothing counts each."""

    def __init__(self, before: Observed | None, *, trains: bool = False) -> None:
        before = before or Observed()
        self._before = before
        self._trains = trains
        self._streamed_bytes = before.streamed_bytes_per_job * before.jobs
        self.jobs = before.steps if trains else before.jobs
        self.misses = before.misses
        self.overruns = before.overruns
        self._worst_s = before.response_time_worst_s
        self._responses_s: deque[float] = deque(maxlen=_WINDOW)
        self._overruns_s: deque[float] = deque(maxlen=_WINDOW)
        """Of each of the last jobs how long it had the device; 0 for one that did not over-run."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a job as the agent recorded it; warm-up does not count."""
        if record["warmup"]:
            return
        response_s = (record["end_ns"] - record["release_ns"]) / 1e9
        self.jobs += 1
        self.misses += record["missed"]
        self._streamed_bytes += record["streamed_bytes"]
        self._responses_s.append(response_s)
        self._worst_s = max(response_s, self._worst_s or 0.0)
        self.overruns += record["overrun_ns"] > 0
        self._overruns_s.append(record["overrun_ns"] / 1e9)

    def observed(self, now: datetime) -> Observed:
        """The sum as the API writes it."""
        responses = sorted(self._responses_s)
        return Observed(
            jobs=0 if self._trains else self.jobs,
            steps=self.jobs if self._trains else 0,
            misses=self.misses,
            response_time_p50_s=_rank(responses, 0.5) or self._before.response_time_p50_s,
            response_time_p99_s=_rank(responses, 0.99) or self._before.response_time_p99_s,
            response_time_worst_s=self._worst_s,
            overruns=self.overruns,
            overrun_job_time_s=self._overrun_job_time_s(),
            streamed_bytes_per_job=self._streamed_bytes // self.jobs if self.jobs else 0,
            last_updated=now,
        )

    def _overrun_job_time_s(self) -> float | None:
        """The time to which two of the last jobs over-ran; as before while they are too few."""
        twice = heapq.nlargest(2, self._overruns_s)[-1:]
        if twice and twice[0] > 0 and len(self._overruns_s) > 1:
            return twice[0]
        full = len(self._overruns_s) == _WINDOW
        return None if full else self._before.overrun_job_time_s


def _rank(ascending: Sequence[float], share: float) -> float | None:
    """The least value that `share` of all do not exceed."""
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, max(0, -int(-share * len(ascending) // 1) - 1))]
