"""How many requests each task may make the operator send: a bucket for each task.

Whatever somebody finds with which a task keeps the operator busy, its requests for that task stay
below `BURST` and `PER_SECOND` more each second; other tasks do not notice it. What is asked for a
task is charged to it by `paying`. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from tierline_operator.placement.books.seats import TaskKey

BURST: Final = 200.0
PER_SECOND: Final = 5.0
_ENOUGH: Final = 20.0
"""A task that has used up its allowance waits for so much, not for single requests."""
_PAYS: ContextVar[TaskKey | None] = ContextVar("pays", default=None)


@dataclass
class _Bucket:
    left: float
    at: float

    def fill(self, now: float) -> float:
        self.left = min(BURST, self.left + (now - self.at) * PER_SECOND)
        self.at = now
        return self.left


class Allowance:
    """The rest of each task's allowance."""

    def __init__(self) -> None:
        self._buckets: dict[TaskKey, _Bucket] = {}

    @contextmanager
    def paying(self, key: TaskKey) -> Iterator[None]:
        """Requests from here on are charged to a task, in this asyncio task."""
        token = _PAYS.set(key)
        try:
            yield
        finally:
            _PAYS.reset(token)

    def charge(self, now: float) -> None:
        """A request was made, for the task that pays, if any does."""
        key = _PAYS.get()
        if key is not None:
            bucket = self._buckets.setdefault(key, _Bucket(BURST, now))
            bucket.fill(now)
            bucket.left -= 1

    def wait_s(self, key: TaskKey, now: float) -> float:
        """How long a task has to wait before more is asked for it; 0 if it need not."""
        bucket = self._buckets.get(key)
        if bucket is None or bucket.fill(now) >= 1:
            return 0.0
        return (_ENOUGH - bucket.left) / PER_SECOND

    def forget(self, now: float) -> None:
        """Keep nothing of tasks that have all of it again."""
        self._buckets = {k: one for k, one in self._buckets.items() if one.fill(now) < BURST}
