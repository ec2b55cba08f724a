"""When a job counts as stuck: it has had the device for so long that it will not end by itself.

What is proved of a job is its planned time; a program may take longer, which is counted. This is no
part of any proof: it bounds what a program that hangs, is stopped or hostile costs the others of
its device.

Invariant: every job has a limit, and no limit is below what its plan lets it take.
"""

from __future__ import annotations

_TIMES_PLANNED = 10
_TIMES_WARMUP = 10


def limit_ns(least_ns: int, planned_ns: int, *, warmup: bool) -> int:
    """How long a job may have the device, nanoseconds.

    `least_ns` is what each may; `planned_ns` is 0 where nothing is planned. A warm-up job of whose
    kind nothing was measured may take longer than any other.
    """
    unknown = warmup and not planned_ns
    return max(least_ns * (_TIMES_WARMUP if unknown else 1), _TIMES_PLANNED * planned_ns)
