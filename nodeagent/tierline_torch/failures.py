"""Jobs that failed in Tierline's code: how a program's log tells of them, and how it is read. Pure.

A program that catches what a forward raises goes on as if nothing were. So the first failure is
told, the second, the fourth, and so on: a log stays short, and shows how many there were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SENTENCE = "jobs of process {process} that failed in Tierline's code: {count} so far; {reason}"
_TOLD = re.compile(
    r"tierline: jobs of process (\d+) that failed in Tierline's code: (\d+) so far; (.*)"
)


def is_told(count: int) -> bool:
    """Whether the failure of this number, from 1 on, is told."""
    return count & (count - 1) == 0


def sentence(count: int, process: int, reason: str) -> str:
    """The sentence about failures of a job."""
    return _SENTENCE.format(count=count, process=process, reason=" ".join(reason.split()))


def read(lines: Iterable[str]) -> tuple[int, str]:
    """How many jobs failed at least, and why the last one that was told did; (0, "") if none."""
    counts: dict[str, int] = {}
    reason = ""
    for line in lines:
        told = _TOLD.search(line)
        if told is not None:
            counts[told[1]] = max(int(told[2]), counts.get(told[1], 0))
            reason = told[3]
    return sum(counts.values()), reason
