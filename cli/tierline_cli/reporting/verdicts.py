"""Whether a run's outputs are those without Tierline, as far as that can be said. Pure.

An output is *comparable* if the program itself, without Tierline, gives one and the same output for
its input: in every job of every process that ran it, and in two processes at least before anything
is called different. A program with a state, or with two models that see one input, gives several:
of it an output is right if two processes gave it for that input, and nothing shows that one is
wrong. One with random numbers, or with weights that are not seeded, is right under Tierline as
well, and nothing here can show it.

Invariant: DIFFERENT is said only of an output that two processes without Tierline agreed on, and
of no other output for its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import Any

from tierline_cli.reporting.results import JobRecord

ENOUGH_RUNS = 2
"""Processes without Tierline that must agree before an output is called different."""


class Verdict(StrEnum):
    """The verdict on a task's outputs."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Outputs:
    """The verdict on the jobs of one task."""

    verdict: Verdict
    compared: int = 0
    """Jobs whose output was comparable."""
    jobs: int = 0
    why: str = ""
    """Why not all of them were; empty if all were."""

    def as_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


@dataclass(frozen=True)
class PlainRun:
    """Outputs of one process without Tierline."""

    outputs: dict[str, frozenset[str]]
    """By input: its outputs."""
    weights: frozenset[str] = frozenset()
    """Digests of the weights that its models began with; empty if unknown."""


@dataclass
class Reference:
    """Outputs of a task's program without Tierline, process by process."""

    runs: list[PlainRun] = field(default_factory=list)
    failure: str = ""
    """Why there are no more runs, if the program could not be run again."""

    def answers(self, given: str) -> frozenset[str]:
        """Every output of an input."""
        return frozenset().union(*(run.outputs.get(given, frozenset()) for run in self.runs))

    def gave(self, given: str, output: str) -> int:
        """How many of the processes gave that output for an input."""
        return sum(output in run.outputs.get(given, ()) for run in self.runs)

    def is_right(self, given: str, output: str) -> bool:
        """Whether the program gives that output for an input without Tierline."""
        return self.answers(given) == {output} or self.gave(given, output) >= ENOUGH_RUNS

    @property
    def weights_differ(self) -> bool:
        """Whether two processes began with other weights; one may have shown more models."""
        known = [run.weights for run in self.runs if run.weights]
        return any(not (one <= other or other <= one) for one, other in combinations(known, 2))

    def seen_in(self, given: str) -> int:
        """How many of the processes had that input."""
        return sum(given in run.outputs for run in self.runs)

    def undecided(self, jobs: Sequence[JobRecord]) -> bool:
        """Whether one more process could decide about some output."""
        return any(
            self._undecided(given, output)
            for job in jobs
            if (given := job.input_digest) and (output := job.output_digest)
        )

    def _undecided(self, given: str, output: str) -> bool:
        answers = self.answers(given)
        if len(answers) < 2:
            return output not in answers and self.seen_in(given) < ENOUGH_RUNS
        return not self.weights_differ and self.gave(given, output) == 1


def judge(jobs: Sequence[JobRecord], reference: Reference, *, cut_short: bool = False) -> Outputs:
    """The verdict on a task's jobs; a program that was ended (`cut_short`) may lack an output."""
    if cut_short and jobs and jobs[-1].output_digest is None:
        jobs = jobs[:-1]
    if not jobs:
        return Outputs(Verdict.NOT_COMPARABLE, why="no job ended")
    same = different = 0
    unsaid: dict[str, int] = {}
    for job in jobs:
        if job.output_digest and reference.is_right(job.input_digest or "", job.output_digest):
            same += 1
        elif why := _not_comparable(job, reference):
            unsaid[why] = unsaid.get(why, 0) + 1
        else:
            different += 1
    why = max(unsaid, key=lambda one: unsaid[one]) if unsaid else ""
    if different:
        verdict = Verdict.DIFFERENT
    else:
        verdict = Verdict.IDENTICAL if same else Verdict.NOT_COMPARABLE
    return Outputs(verdict, same + different, len(jobs), why)


def _not_comparable(job: JobRecord, reference: Reference) -> str:
    """Why an output that is not known to be right cannot be called different; empty if it can."""
    if not job.input_digest:
        return "the program showed no output of its jobs; only calls of PyTorch modules are seen"
    if not job.output_digest:
        return "their models raised an exception, were interrupted, or returned no tensor"
    if len(reference.answers(job.input_digest)) > 1:
        if reference.weights_differ:
            return (
                "without Tierline its weights differ from one start to the next; seed them, or "
                "load them from a file"
            )
        known = any(run.weights for run in reference.runs)
        unseeded = "" if known else "weights that are not seeded, "
        return (
            "without Tierline, too, it gave different outputs for one input: it has a state, "
            f"random numbers, {unseeded}or several models"
        )
    if reference.seen_in(job.input_digest) >= ENOUGH_RUNS:
        return ""
    return reference.failure or (
        "without Tierline it did not see the same inputs; seed them, or read them in order"
    )
