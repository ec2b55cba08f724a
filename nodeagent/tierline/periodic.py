"""`for release in tierline.periodic()`: a loop that keeps the task's period.

Under an agent the loop first runs warm-up iterations one after another, so that the models are
learned, sealed and checked; then it says READY, waits for START, and sleeps to each release on
CLOCK_MONOTONIC. A release that comes while its predecessor still runs begins as soon as that ends:
none is left out, so that a late job shows as late. A program that was not ready when the releases
began, as after a restart, begins with the next one. An observed run has no pauses.

From READY to its end the loop has Python's garbage collector pass over what is there by then,
unless the program has seen to that itself: to look at all objects of a program with PyTorch takes
tens to hundreds of milliseconds, in the middle of a job. What of it lies in cycles that are let go
of meanwhile is collected after the loop.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from tierline import surroundings
from tierline_torch.errors import TierlineError

_LEAST_WARMUPS = 3
_MOST_WARMUPS = 32


@dataclass(frozen=True)
class Release:
    """One activation. Times are CLOCK_MONOTONIC nanoseconds, as `time.monotonic_ns` gives."""

    index: int
    """0, 1, 2, …; negative in warm-up iterations, which are not counted."""
    release_ns: int
    deadline_ns: int

    @property
    def warmup(self) -> bool:
        """Whether this is a warm-up iteration."""
        return self.index < 0


def periodic(
    period: float | None = None, *, deadline: float | None = None, jobs: int | None = None
) -> Iterator[Release]:
    """Yield the task's releases, each when it is due.

    `period` and `deadline` (seconds; the deadline is by default the period) are for running without
    Tierline, and under `policy: Swap`: other tasks have their own, which then hold. `jobs` ends the
    loop after so many releases; else it ends when the task ends, without those never.

    Raises TierlineError if neither Tierline nor a `period` is there, ValueError for times that are
    not positive.
    """
    for name, value in (("period", period), ("deadline", deadline), ("jobs", jobs)):
        if value is not None and value <= 0:
            raise ValueError(f"could not begin a periodic loop: {name}={value} must be above 0")
    if surroundings.managed():
        from tierline_torch.process import process  # noqa: PLC0415  # loads torch

        here = process()
        if here.backend is not None:
            return _managed(jobs)
    if period is None:
        why = (
            "a program under policy Swap keeps its own time; give"
            if surroundings.swapped()
            else "this program runs without Tierline, which knows the period; start it by "
            "`tierline run`, or give"
        )
        raise TierlineError(
            f"could not begin a periodic loop: {why} tierline.periodic(period=seconds)"
        )
    relative_ns = round((period if deadline is None else deadline) * 1e9)
    now = time.monotonic_ns()
    return _releases(now, now, round(period * 1e9), relative_ns, 0, jobs)


def _releases(
    ready_ns: int, epoch_ns: int, period_ns: int, deadline_ns: int, until_ns: int, jobs: int | None
) -> Iterator[Release]:
    first = max(0, -((epoch_ns - ready_ns) // period_ns)) if period_ns else 0
    for index in count(first) if jobs is None else range(first, first + jobs):
        release_ns = epoch_ns + index * period_ns if period_ns else time.monotonic_ns()
        if until_ns and release_ns >= until_ns:
            return
        _sleep_until(release_ns)
        yield Release(index, release_ns, release_ns + deadline_ns)


def _sleep_until(when_ns: int) -> None:
    # time.sleep is clock_nanosleep on CLOCK_MONOTONIC; it may end early by a rounding.
    while (left_ns := when_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def _managed(jobs: int | None) -> Iterator[Release]:
    from tierline_torch.learning.site import Window  # noqa: PLC0415  # loads torch
    from tierline_torch.process import process  # noqa: PLC0415

    here = process()
    backend = here.backend
    if backend is None:
        return
    try:
        here.warming = True
        for done in range(_MOST_WARMUPS):
            lessons = here.lessons
            now = time.monotonic_ns()
            here.window = Window(now, now + backend.deadline_ns)
            yield Release(done - _MOST_WARMUPS, now, now + backend.deadline_ns)
            if done + 1 >= _LEAST_WARMUPS and here.lessons == lessons:
                break
        here.window = None
        with _long_lived_passed_over():
            ready_ns = time.monotonic_ns()
            epoch_ns, until_ns = backend.ready()
            here.warming = False
            limits = [limit for limit in (jobs, backend.releases) if limit is not None]
            times = (ready_ns, epoch_ns, backend.period_ns, backend.deadline_ns, until_ns)
            for release in _releases(*times, min(limits, default=None)):
                here.window = Window(release.release_ns, release.deadline_ns)
                yield release
    finally:
        here.window = None
        here.warming = False
        backend.finish()


@contextmanager
def _long_lived_passed_over() -> Iterator[None]:
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
