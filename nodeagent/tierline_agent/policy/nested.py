"""When a job of one process of a task is taken for a part of another process's job.

A job may wait for a job of another process of its task: a stage of a pipeline, a worker of a queue.
The one has the lease, the other waits for it, and neither goes on. Nothing tells this before; while
it lasts it shows: the process that has the lease does not compute. So the one that waits is looked
at, and after some looks at which that was so, it runs as a part of the other's job, without lease
and ring. A process in which another thread computes shows nothing, and is given much longer.

A wrong guess has a job run during another one of its task: right, slower, and not counted. A task
pays for that, no other: the lease stays where it is, and the holder's limit counts on.

Invariant: no job waits for a job of another process of its task for longer than `LONGEST_S`, or
twice what that is planned to take.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_S = 0.25
_STILL_LOOKS = 4
_KNOWN_LOOKS = 1
"""The same of one that was nested before."""
LONGEST_S = 10.0
_MOST_TICKS = 1
"""Of the processor's, within a look: a process that waits may yet poll."""


@dataclass
class Wait:
    """The wait of one job for a job of another process of its task."""

    holder: object
    """The job that has the lease."""
    since_ns: int
    ticks: int | None
    """The computing time of that process at the last look."""
    still: int = 0
    """Looks in a row at which it had not."""

    def is_nested(
        self, ticks: int | None, now_ns: int, *, planned_ns: int, nested_before: bool
    ) -> bool:
        """Whether the other job waits for this one, by this look.

        `ticks` is what its process has computed by now, None if that cannot be found out;
        `planned_ns` is what its plan lets it take.
        """
        idle = None not in (ticks, self.ticks) and (ticks or 0) - (self.ticks or 0) <= _MOST_TICKS
        self.ticks = ticks
        self.still = self.still + 1 if idle else 0
        if self.still >= (_KNOWN_LOOKS if nested_before else _STILL_LOOKS):
            return True
        return now_ns - self.since_ns >= max(round(LONGEST_S * 1e9), 2 * planned_ns)
