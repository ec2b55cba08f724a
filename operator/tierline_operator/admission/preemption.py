"""Costs and sections of jobs that may be preempted where a layer ends.

Theorem (limited preemption with fixed points: Baruah, ECRTS 2005; Bertogna, Baruah, IEEE TII 6(4),
2010; blocking by the longest segment is machine-checked in Prosa, `limited_preemptive.v`; the
charges are P6 and P7 in docs/design/theory.md). A set holds under EDF that preempts at layer
boundaries and while a job waits for data, if the demand test of demand.py accepts with

    C_i' = C_i + gamma_i     gamma_i = max{ penalty_j + resume : j preemptible, D_j > D_i }
    q_j  = the longest time until j yields if it is preemptible, else C_j'.

That time is its longest layer; where a job that waits for data cannot be preempted (a GPU's
stream), it is the longest from one gate to the next, waits included (planning/jobs/waits.py).

A job preempts at most one other, when it first gets the device, and only one with a longer relative
deadline; so what a preemption costs is charged once, to the job that causes it. `penalty_j` is what
the preempted job does again (planning/jobs/restart.py), `resume` what handing it back takes.

Ring-keeping rule (P7): a *fully resident* job that preempts leaves the ring alone and the copies go
on, so it costs the preempted job nothing but the way back: gamma_i = resume. A *partially* resident
one is not free (trap T3e): it takes the ring, however little it streams. Proof idea: time in a
window is the compute of its jobs plus the stalls of the one with the earliest deadline; compute of
a resident job only lets the interrupted pipeline advance; a ring is dropped only when a streamed
job with a shorter deadline takes over.

Memory (trap T13): what a preempted job computed so far stays parked, so the activations of *every*
preemptible task count, all at once, in addition to residents, ring and the largest workspace.

P9, Soft tasks by their mean (derived here). Job j has its rank for a budget b_j, made of its mean,
and goes on without one: from its next gate on it runs when no job with a rank waits, and gives way
to any at every gate. So whatever its jobs really take, the others' deadlines hold if the test
accepts with C_j = b_j + q_j, and with q_j as blocking at every t: in a window each job of j has the
device with its rank, or on the way to the gate after its budget, for no longer than C_j; without a
rank it is there only if its layer began before the window. At that gate, and only there, a job in
mid-stream gives the device to one that goes on: to k, whose stream begins when the copies of j that
are under way have ended on every link. Of that penalty_k has only what k's own links may be busy
with, so max{ flight_j - flight_k : j by its mean } is added to it. (A job that begins is charged
for what it displaces, and a job that preempts has ended, its stream with it, when others go on.)
What it does again after a preemption is charged to the one that preempts it as long as it has its
rank, and delays nobody but itself afterwards. A job that keeps the device to its end cannot be held
to a budget: it counts with its worst, unless nobody's deadline on the device is hard.

P10, releases of several jobs (derived here). Between two jobs of a release the agent keeps the
device for it: it goes only to a job that is due earlier, for as long as what passes between them
was planned with (leases.py of the agent). So a release of m jobs is like one job that computes
meanwhile,

    C_i' = C_i + between_i + m gamma_i,

is blocked once, and keeps others waiting for one of its jobs: at its end those due earlier go on.

Assumptions: those of demand.py; C_i contains what may be under way on the links (P3) when a
streamed job is dispatched, that of a stream which it displaces included, penalty_j the same of its
own links once more, and nothing else is copied while a job streams; a layer once begun
runs to its end; nothing runs in the stalls of the job with the earliest deadline (trap T15). Not
used: that a long layer comes late in its job (trap T11): with shorter layers before it, it comes
early. The test is sufficient and sustainable, not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from tierline_operator.admission.demand import BEYOND_NS

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NEVER: Final = 1 << 62
"""The deadline of a task that has none."""


class Scheduling(StrEnum):
    """When a job gives the device away before it ends, and what the others lose by it."""

    NON_PREEMPTIVE = "non-preemptive"
    """Never. The demand test is exact."""
    LAYER_PREEMPTIVE = "layer-preemptive"
    """At layer boundaries, to an earlier deadline; a job that takes over takes the ring."""
    RING_KEEPING = "ring-keeping"
    """The same, but a fully resident job that takes over leaves the ring alone."""


@dataclass(frozen=True)
class PlannedJob:
    """One task as the charges see it, nanoseconds."""

    deadline_ns: int | None
    """None: it has none (BestEffort), so nobody owes it anything."""
    cost_ns: int
    """Demand of a job that is not preempted."""
    section_ns: int
    """A whole job at its worst: how long others wait if it cannot be preempted."""
    layer_ns: int
    """The longest time until it yields, dispatch included."""
    penalty_ns: int
    """What one preemption makes it do again."""
    streams: bool
    calls: int = 1
    """How many times a release gets the device: jobs that it has one after another."""
    flight_ns: int = 0
    """How long what its stream has under way goes on when it is stopped."""
    by_mean: bool = False
    """Whether `cost_ns` is not its worst, but what a Soft task is held to."""


class Jobs:
    """Jobs of many tasks, as a column for each figure of PlannedJob; flags are 0 or 1.

    They are charged again and again while a search goes on, so all of them at once.
    """

    def __init__(self, rows: Ints) -> None:
        """`rows`: what `row_of` gives, the last axes being tasks."""
        self.rows = rows
        self.deadline, self.cost, self.section, self.layer, self.penalty = rows[:5]
        self.streams, self.calls, self.flight, self.by_mean = rows[5:]

    @staticmethod
    def row_of(job: PlannedJob) -> tuple[int, ...]:
        """One job."""
        deadline_ns = NEVER if job.deadline_ns is None else job.deadline_ns
        times = (job.cost_ns, job.section_ns, job.layer_ns, job.penalty_ns)
        least = (min(ns, BEYOND_NS) for ns in times)
        return (deadline_ns, *least, job.streams, job.calls, job.flight_ns, job.by_mean)

    @classmethod
    def of(cls, jobs: Sequence[PlannedJob]) -> Jobs:
        """These jobs, in this order."""
        return cls(np.array([cls.row_of(job) for job in jobs], np.int64).reshape(-1, FIGURES).T)


FIGURES: Final = 9
"""Of a row."""


class Charges:
    """What the jobs of a set are charged, and what one would be in place of another."""

    def __init__(
        self, jobs: Jobs, preemptible: Flags, scheduling: Scheduling, resume_ns: int
    ) -> None:
        """`preemptible`: which of them are."""
        self._jobs = jobs
        self._preemptible = preemptible
        self._resume_ns = resume_ns
        self._keeps_ring = scheduling is Scheduling.RING_KEEPING
        self._any_by_mean = bool((jobs.by_mean[preemptible] > 0).any())
        lost = going_on_ns(jobs, preemptible)
        victims = np.flatnonzero(preemptible & (jobs.deadline < NEVER))
        victims = victims[np.lexsort((lost[victims], jobs.deadline[victims]))]
        self._deadlines = jobs.deadline[victims]
        # Of the last victims, for each number of them: the most that one loses, that victim, and
        # the most of another one.
        last = lost[victims][::-1]
        most = np.maximum.accumulate(np.append(-1, last))
        longer = last > most[:-1]
        whose = np.maximum.accumulate(np.append(-1, np.where(longer, np.arange(len(last)), -1)))
        second = np.maximum.accumulate(np.append(-1, np.where(longer, most[:-1], last)))
        self._most, self._second = most[::-1], second[::-1]
        self._whose = np.append(victims[::-1], -1)[whose][::-1]

    def of(self, index: Ints, jobs: Jobs) -> tuple[Ints, Ints]:
        """Costs C' and sections q of `jobs`, each in place of one, where `same_for_others`."""
        most = self._most[np.searchsorted(self._deadlines, jobs.deadline, side="right")]
        extra = np.where((most >= 0) & (jobs.deadline < NEVER), most + self._resume_ns, 0)
        if self._keeps_ring:
            extra = np.where((extra > 0) & (jobs.streams == 0), self._resume_ns, extra)
        # Doubles have every whole number up to BEYOND_NS, and no product is too large for them.
        extras = np.minimum(jobs.calls * extra.astype(np.float64), BEYOND_NS).astype(np.int64)
        return (
            jobs.cost + extras,
            np.where(
                self._preemptible[index],
                np.minimum(jobs.layer, jobs.section),
                jobs.section + extra,
            ),
        )

    def same_for_others(self, index: Ints, jobs: Jobs) -> Flags:
        """Whether all others are charged the same with each of `jobs` in place of that one."""
        before = self._jobs.penalty[index]
        deadlines = self._jobs.deadline[index]
        harmless: Flags = ~self._preemptible[index] | (deadlines == NEVER)
        if self._any_by_mean:
            return harmless  # waits for their copies may change
        place = np.searchsorted(self._deadlines, deadlines, side="left")
        most = np.where(self._whose[place] == index, self._second[place], self._most[place])
        same: Flags = jobs.penalty == before
        less: Flags = np.maximum(jobs.penalty, before) <= most
        return harmless | same | less


def going_on_ns(jobs: Jobs, preemptible: Flags) -> Ints:
    """What one preemption costs each preemptible job itself, waits for others' copies included."""
    flying = np.flatnonzero(preemptible & (jobs.by_mean > 0))
    longest = np.zeros_like(jobs.flight)
    if len(flying):
        *_, first = flying[np.argsort(jobs.flight[flying], kind="stable")]
        longest[:] = jobs.flight[first]
        longest[first] = jobs.flight[flying[flying != first]].max(initial=0)
    waits_ns = np.where(jobs.streams > 0, np.maximum(0, longest - jobs.flight), 0)
    lost: Ints = jobs.penalty + waits_ns
    return lost
