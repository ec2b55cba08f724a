"""What was promised of each phase of a run, and what its tasks' jobs and counters say.

A job belongs to the phase in which it ended: one that waits for an agent is late in the phase that
kept it waiting, if that lasts until every task has caught up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from tests.gpu_e2e.tasks import Job

_SAID: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) \w+ [\w.]+: (.*)$")
_ENDING: Final = "stopping;"
_STEPS: Final = {
    "gone": "the agent that served has ended",
    "alone": "no process of an agent before is left",
    "opened": "opened the devices in ",
    "ready": "ready in ",
}
"""What the next agent says, when it is so."""


@dataclass(frozen=True)
class Phase:
    """A part of a run under load; times in seconds since the epoch."""

    name: str
    begin_s: float
    end_s: float
    may_be_late: bool = False
    """Whether jobs may wait in it for longer than their deadlines allow."""


@dataclass(frozen=True)
class Line:
    """What a task did in a phase."""

    task: str
    phase: str
    jobs: int
    late: int
    """By the program's own clock."""
    misses: float
    """By the agents' counters."""
    worst_s: float
    """From a job's release to its output, at worst; 0 without a job."""
    wrong: int
    """Outputs that are not the reference's."""

    @property
    def text(self) -> str:
        """The line of a table."""
        right = f"{self.wrong} WRONG" if self.wrong else "identical"
        return (
            f"{self.phase:<20}{self.task:<8}{self.jobs:>5} jobs{self.late:>4} late"
            f"{self.misses:>4.0f} misses  worst {self.worst_s * 1e3:>7.1f} ms  outputs {right}"
        )

    @property
    def figures(self) -> dict[str, Any]:
        """For result.json."""
        return {
            "jobs": self.jobs,
            "late": self.late,
            "misses": self.misses,
            "worst_s": round(self.worst_s, 6),
            "wrong": self.wrong,
        }


def judge(task: str, phase: Phase, jobs: Sequence[Job], misses: float, digest: str) -> Line:
    """What a task did in a phase, of all its jobs."""
    inside = [job for job in jobs if phase.begin_s <= job.ended_s < phase.end_s]
    return Line(
        task,
        phase.name,
        len(inside),
        sum(job.late for job in inside),
        misses,
        max((job.response_s for job in inside), default=0.0),
        sum(job.digest != digest for job in inside),
    )


def objections(phase: Phase, line: Line) -> list[str]:
    """In what a task did not keep what was promised of the phase."""
    found = []
    if line.wrong:
        found.append(f"{line.wrong} outputs differ")
    if not line.jobs:
        found.append("no job ended")
    if not phase.may_be_late and (line.late or line.misses):
        found.append(f"{line.late} jobs late, {line.misses:.0f} misses")
    return [f"{line.task}, {phase.name}: {one}" for one in found]


def gaps(jobs: Sequence[Job]) -> int:
    """How many releases have no job: their numbers must follow each other."""
    return sum(b.index - a.index - 1 for a, b in pairwise(jobs))


def hand_over(before: str, after: str) -> dict[str, float]:
    """What an agent's log and that of the next say of their hand-over.

    In seconds since the first one began to end: when its lock was `gone`, when the next one was
    `alone` (the process, too), had `opened` devices and tiers, and was `ready`. Left out is what
    was not said.
    """
    ends = [moment for moment, words in _said(before) if words.startswith(_ENDING)]
    if not ends:
        return {}
    return {
        name: round(moments[-1] - ends[-1], 3)
        for name, words in _STEPS.items()
        if (moments := [moment for moment, said in _said(after) if words in said])
    }


def _said(log: str) -> list[tuple[float, str]]:
    found = (_SAID.match(line) for line in log.splitlines())
    return [
        (datetime.fromisoformat(f"{one[1]}.{one[2]}+00:00").timestamp(), one[3])
        for one in found
        if one
    ]
