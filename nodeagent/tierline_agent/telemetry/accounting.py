"""Accounts of the past: job records, counters of each task, and the peak of the fast memory.

It observes and never decides. Job records are kept in a ring of bounded length; a reader asks for
those after its cursor and is told how many it was too late for.

Invariant: every job that ended was counted once, and every counted job gets exactly one record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any

MAX_RECORDS_PER_READ = 2048
"""To make and to write out so many is one turn of the event loop, of about 10 ms."""


@dataclass
class JobRecord:
    """One job that ended. Times are CLOCK_MONOTONIC nanoseconds."""

    task: str
    job: int
    release_ns: int
    granted_ns: int
    end_ns: int
    deadline_ns: int
    missed: bool
    warmup: bool
    streamed_bytes: int
    fetched_bytes: int
    stall_ns: int
    workspace_bytes: int
    preemptions: int = 0
    """How often it gave the device away."""
    parked_ns: int = 0
    """How long it was without it."""
    overrun_ns: int = 0
    """If it had the device for longer than its plan predicts: how long, less what is charged for
    the rings that others displaced. Else 0, also for a job that was revoked."""
    input_digest: str | None = None
    output_digest: str | None = None

    @property
    def response_ns(self) -> int:
        """From release to end."""
        return self.end_ns - self.release_ns

    @property
    def job_time_ns(self) -> int:
        """How long it had the device."""
        return self.end_ns - self.granted_ns - self.parked_ns


@dataclass
class TaskCounters:
    """Sums over the jobs of one task; warm-up jobs are counted apart."""

    jobs: int = 0
    warmup_jobs: int = 0
    misses: int = 0
    revoked: int = 0
    broken: int = 0
    """Jobs whose client left or died in the middle; they are in no other sum."""
    uncontended: int = 0
    """Jobs that took the lease where it was left open to them, without asking."""
    overruns: int = 0
    """Jobs that held the lease longer than their plan predicts."""
    contained: int = 0
    """Over-runs that lost their rank, so that they cost others no more than a layer."""
    put_off: int = 0
    """Jobs that were served later than their program named, since it releases more often than its
    period."""
    throttled: int = 0
    """Jobs that were held back, since those before them kept others waiting beyond the plan."""
    preemptions: int = 0
    """Times that a job gave the device away."""
    rings_lost: int = 0
    """Times that a job streamed again what others' streams displaced."""
    late_yields: int = 0
    """Times that a job stood at its gate later than was planned, or never."""
    yield_worst_ns: int = 0
    """Longest time from asking a job for the device to its standing at a gate."""
    late_firsts: int = 0
    """Warm-up jobs that kept jobs with guaranteed deadlines waiting for longer than was planned."""
    first_blocked_worst_ns: int = 0
    """Longest time for which one did, planned or not."""
    streamed_bytes: int = 0
    fetched_bytes: int = 0
    stall_ns: int = 0
    response_worst_ns: int = 0
    job_time_worst_ns: int = 0
    workspace_peak_bytes: int = 0
    memory_overruns: int = 0
    """Jobs that took more memory besides the weights than their plan grants."""

    def count(
        self, record: JobRecord, predicted_job_ns: int | None, workspace_bytes: int | None = None
    ) -> None:
        """Add one job, by how long it might have the device, and by the workspace it might take."""
        self.fetched_bytes += record.fetched_bytes
        self.workspace_peak_bytes = max(self.workspace_peak_bytes, record.workspace_bytes)
        self.streamed_bytes += record.streamed_bytes
        if record.warmup:
            self.warmup_jobs += 1
            return
        self.jobs += 1
        self.misses += record.missed
        self.stall_ns += record.stall_ns
        self.response_worst_ns = max(self.response_worst_ns, record.response_ns)
        self.job_time_worst_ns = max(self.job_time_worst_ns, record.job_time_ns)
        if predicted_job_ns is not None and record.job_time_ns > predicted_job_ns:
            self.overruns += 1
        self.memory_overruns += (
            workspace_bytes is not None and record.workspace_bytes > workspace_bytes
        )

    def as_json(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)


_FIELDS = tuple(one.name for one in fields(JobRecord))
_values_of = attrgetter(*_FIELDS)


class JobLog:
    """The last job records, numbered from 0.

    They are kept as tuples of numbers and strings, which Python's garbage collector leaves alone:
    to pass over as many objects as a busy client fills this with keeps the event loop for 30 ms.
    """

    def __init__(self, limit: int) -> None:
        self._records: deque[tuple[Any, ...]] = deque(maxlen=limit)
        self._next = 0

    def append(self, record: JobRecord) -> None:
        """Keep a record, dropping the oldest if there are too many."""
        self._records.append(_values_of(record))
        self._next += 1

    def since(self, cursor: int, most: int = MAX_RECORDS_PER_READ) -> dict[str, Any]:
        """The records from number `cursor` on: `most`, and no more than one answer may hold.

        The answer's `cursor` is what to ask with next; `lost` were dropped before they were read.
        """
        oldest = self._next - len(self._records)
        first = min(max(cursor, oldest), self._next)
        last = min(first + most, first + MAX_RECORDS_PER_READ, self._next)
        chosen = [self._records[number - oldest] for number in range(first, last)]
        return {
            "jobs": [dict(zip(_FIELDS, record, strict=True)) for record in chosen],
            "cursor": last,
            "lost": max(0, first - cursor),
            "more": last < self._next,
        }


@dataclass
class FastMemory:
    """Bytes of fast memory in use.

    On the host: extents, workspaces of begun jobs, what left management. On a GPU, where processes
    say what they hold by themselves: extents, and all of that.
    """

    limit_bytes: int
    told: bool = False
    """Whether processes say what they hold."""
    extent_bytes: int = 0
    workspace_bytes: int = 0
    parked: dict[int, int] = field(default_factory=dict)
    """By client: what a job that gave the device away has computed so far."""
    unmanaged: dict[tuple[str, int], int] = field(default_factory=dict)
    """By task and client: weights that stay where the framework put them."""
    unswappable: dict[tuple[str, int], int] = field(default_factory=dict)
    """By task and client: what cannot move, as reported last."""
    held: dict[tuple[str, int], int] = field(default_factory=dict)
    """By task and client: all that it holds by itself, as reported last."""
    starting: set[tuple[str, int]] = field(default_factory=set)
    """By task and client: those with weights of their own still; no job of theirs has counted."""
    peak_bytes: int = 0
    """The most that was in use, without what those that start hold by themselves."""
    start_peak_bytes: int = 0
    """The most that was in use while any started; 0 if none did."""

    @property
    def used_bytes(self) -> int:
        """In use now."""
        if self.told:
            return self.extent_bytes + sum(self.held.values())
        others = sum(self.unmanaged.values()) + self.unswappable_bytes
        return self.extent_bytes + self.workspace_bytes + sum(self.parked.values()) + others

    @property
    def unswappable_bytes(self) -> int:
        """In use now and unable to move."""
        return sum(self.unswappable.values())

    def set_extents(self, size_bytes: int) -> None:
        """So many bytes of extents exist."""
        self.extent_bytes = size_bytes
        self._observe()

    def set_workspace(self, size_bytes: int) -> None:
        """The running job has so much workspace; 0 if none runs."""
        self.workspace_bytes = size_bytes
        self._observe()

    def park(self, client: int, size_bytes: int) -> None:
        """A job gave the device away, and keeps so much."""
        self.parked[client] = size_bytes
        self._observe()

    def unpark(self, client: int) -> None:
        """It has the device again, or is over."""
        self.parked.pop(client, None)

    def add_unmanaged(self, task: str, client: int, size_bytes: int) -> None:
        """A client reports bytes outside the agent's management."""
        key = (task, client)
        self.unmanaged[key] = self.unmanaged.get(key, 0) + size_bytes
        self._observe()

    def set_unswappable(self, task: str, client: int, size_bytes: int) -> None:
        """A client reports how many bytes it has by now that cannot move."""
        self.unswappable[task, client] = size_bytes
        self._observe()

    def set_held(self, task: str, client: int, size_bytes: int) -> None:
        """A client reports how many bytes it has by now that are in no extent."""
        self.held[task, client] = size_bytes
        self._observe()

    def besides_weights(self, task: str, client: int) -> int | None:
        """Memory of a client's own that is no weight, as reported last; None: it did not.

        0 while it starts: nobody can tell what of it are weights.
        """
        key = (task, client)
        held = self.held.get(key)
        if held is None:
            return None
        return 0 if key in self.starting else max(0, held - self.unmanaged.get(key, 0))

    def starts(self, task: str, client: int) -> None:
        """A client begins with weights of its own, which it is to give to the agent."""
        if self.told:
            self.starting.add((task, client))

    def started(self, task: str, client: int) -> None:
        """A client holds by itself as much as was planned for it, or more, from now on."""
        if (task, client) in self.starting:
            self.starting.remove((task, client))
            self._observe()

    def unswappable_of(self, task: str, client: int) -> int:
        """Bytes that a client reported last."""
        return self.unswappable.get((task, client), 0)

    def forget_client(self, task: str, client: int) -> None:
        """The client is gone, and its memory with it."""
        self.unmanaged.pop((task, client), None)
        self.unswappable.pop((task, client), None)
        self.held.pop((task, client), None)
        self.starting.discard((task, client))

    def _observe(self) -> None:
        used = self.used_bytes
        if self.starting:
            self.start_peak_bytes = max(self.start_peak_bytes, used)
            used -= sum(self.held.get(one, 0) for one in self.starting)
        self.peak_bytes = max(self.peak_bytes, used)
